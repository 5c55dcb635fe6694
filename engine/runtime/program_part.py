"""A part whose work is that of all replicas of a view, which exchange vectors: all-reduce and its like."""

from __future__ import annotations

from dataclasses import dataclass

from partita.engine.protocol.joined_work import JoinedWork
from partita.engine.protocol.part import Part
from partita.engine.protocol.program_effects import RunStep
from partita.engine.runtime.buffers import Buffers, Vectors
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.exchange_arrays import ExchangeArrays
from partita.engine.runtime.metrics import examples_counted
from partita.engine.runtime.part_body import PartBody, start_player
from partita.engine.runtime.program_task import PartSettings
from partita.engine.runtime.program_vectors import ProgramVectors
from partita.engine.runtime.step_runner import StepRunner
from partita.engine.runtime.task import HostContext


@dataclass(frozen=True, kw_only=True)
class ProgramPartTask(PartSettings):
    """A part of a program driver."""

    def role(self, host: HostContext) -> tuple[Part, PartBody]:
        """See the protocol `HostTask`."""
        plan, machine, feed = self.plan, self.machine, self.feed()
        vectors = Vectors(plan, machine)
        computations = Computations(Buffers(plan, machine, self.instructions, vectors, keep=plan.kept), feed)
        slots, pool = self.layout.machines[machine], computations.pool
        exchanged = ProgramVectors(vectors, self.optimizer, slots, norms=self.norms, pool=pool)
        arrays = ExchangeArrays(self, host, exchanged)

        def prepare(step: RunStep) -> None:
            feed.choose(step.position, rank=step.rank, replicas=step.replicas, alone=step.alone)

        runner = StepRunner(
            start_player(host, computations, replica=self.replica, lanes=self.threads),
            computations,
            prepare=prepare,
            finish=exchanged.computed,
            counted=lambda: examples_counted(plan, machine, feed.count),
            replica=self.replica,
        )
        timeout_s = self.instruction_timeout_s
        body = PartBody(host, runner, arrays, feed, watchdog=computations.watchdog, timeout_s=timeout_s)
        seat = self.seat(host.incarnation, size=exchanged.size, state=exchanged.names, step=arrays.step)
        return Part(self.program, JoinedWork(seat, self.batches), version=seat.step), body
