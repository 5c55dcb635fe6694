"""A part whose work is assigned unit by unit, and whose shards sum gradients: Sandblaster and its like.

One thread sends and receives, others compute, and one fetches the examples of the next portion. Points are
replaced only between two assignments; a gradient is in flight while the next one accumulates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from partita.engine.protocol.actions import Program as Replica
from partita.engine.protocol.assigned_work import AssignedWork, RunAssignment
from partita.engine.protocol.commands import Portions
from partita.engine.protocol.host import RoleMachine
from partita.engine.protocol.leased_work import HasSteps
from partita.engine.protocol.part import Part
from partita.engine.protocol.point_links import PointLinks
from partita.engine.runtime.assignments import MultiPartRunner, SinglePartRunner
from partita.engine.runtime.buffers import Buffers, Vectors
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.link_arrays import LinkArrays
from partita.engine.runtime.part_body import PartBody, start_player
from partita.engine.runtime.part_task import PartTask
from partita.engine.runtime.portion_feed import PortionFeed, PortionOrder
from partita.engine.runtime.shared_part import SharedBody
from partita.engine.runtime.task import HostContext
from partita.engine.runtime.updates import GradientSum
from partita.partitioner.ir.program import COMPUTES, Program
from partita.partitioner.ir.step_kind import StepKind


@dataclass(frozen=True)
class SandblasterPartTask(PartTask):
    """One machine's part of one replica. A portion has `plan.batch` examples.

    Args:
        plan, machine, replica, replicas, data, examples, seed, shards: see `PartTask`.
        shuffled: whether examples come in a new order each epoch, or else as they lie.
        program: the `replica` of the driver.
    """

    shuffled: bool
    program: Callable[[HasSteps], Replica]

    @property
    def instructions(self) -> Program:
        """The instructions of a portion."""
        return self.plan.programs_for(StepKind())[self.machine]

    def role(self, host: HostContext) -> tuple[RoleMachine, PartBody]:
        """See the protocol `HostTask`."""
        vectors = Vectors(self.plan, self.machine, gradient=False)
        links = PointLinks(shards=self.shard_spans, item_bytes=vectors.parameters.itemsize)
        work = AssignedWork(links, alone=not self.other_parts)
        needed = (*self.other_parts, *links.shards)
        machine = Part(self.program, work, needed=needed, watched=links.shards)
        order = PortionOrder(Portions(self.examples, self.plan.batch), seed=self.seed, shuffled=self.shuffled)
        feed = PortionFeed({name: file.open() for name, file in self.data.items()}, order)
        updates = GradientSum(vectors)
        program = self.instructions
        buffers = Buffers(self.plan, self.machine, program, vectors, keep=self.plan.kept)
        computations, arrays = Computations(buffers, feed, updates), LinkArrays(vectors, updates)
        timeout_s = self.instruction_timeout_s

        def prepare(assignment: RunAssignment, n: int) -> None:
            """Chooses portion number n of an assignment, and has the one after it fetched."""
            updates.begin(first=n == 0)
            feed.choose(assignment.first + n)
            following = work.following
            if n + 1 < assignment.count:
                feed.ahead(assignment.first + n + 1)
            elif following is not None:
                feed.ahead(following.first)

        if any(instruction.op not in COMPUTES for instruction in program.instructions):
            player = start_player(host, computations, replica=self.replica, lanes=self.threads)
            several = MultiPartRunner(player, computations, prepare=prepare)
            return machine, PartBody(
                host, several, arrays, feed, watchdog=computations.watchdog, timeout_s=timeout_s
            )
        one = SinglePartRunner(
            computations,
            prepare=prepare,
            is_over=lambda evaluation: not self.other_parts and work.is_over(evaluation),
            wake=host.wake,
        )
        body = SharedBody(
            host, one, arrays, feed, machine, watchdog=computations.watchdog, timeout_s=timeout_s
        )
        one.start(body.finish)
        return body.machine, body
