"""A part whose work is leased, and whose shards apply each push on arrival: Downpour and its like.

Fetch, push and compute run side by side (DistBelief, section 4.1): the host's thread sends and receives, the
player's threads compute, and parameters are replaced only between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from partita.engine.parameters.optimizers import Optimizer
from partita.engine.protocol.actions import Program
from partita.engine.protocol.leased_work import HasSteps, LeasedWork, RunUnit
from partita.engine.protocol.messages import PushRecord
from partita.engine.protocol.parameter_links import ParameterLinks
from partita.engine.protocol.part import Part
from partita.engine.runtime.buffers import Buffers, Vectors
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.feed import DatasetFeed, Sampler
from partita.engine.runtime.link_arrays import LinkArrays
from partita.engine.runtime.metrics import examples_counted
from partita.engine.runtime.part_body import PartBody, start_player
from partita.engine.runtime.part_task import PartTask
from partita.engine.runtime.push_log import PushLog, pushes_of_part
from partita.engine.runtime.step_runner import StepRunner
from partita.engine.runtime.task import HostContext
from partita.engine.runtime.updates import GradientAccumulation
from partita.partitioner.ir.step_kind import StepKind


@dataclass(frozen=True)
class DownpourPartTask(PartTask):
    """One machine's part of one replica.

    Args:
        plan, machine, replica, replicas, data, examples, seed, shards: see `PartTask`.
        optimizer: updates the part's own parameters between two fetches.
        program: the `replica` of the driver.
        acknowledged: folder in which parts note the pushes that shards have acknowledged.
        overlap: see `Downpour`.
        merges: one push holds the gradients of several steps or minibatches.
    """

    optimizer: Optimizer
    program: Callable[[HasSteps], Program]
    acknowledged: Path
    overlap: int = 1
    merges: bool = False

    def role(self, host: HostContext) -> tuple[Part, PartBody]:
        """See the protocol `HostTask`."""
        plan, machine = self.plan, self.machine
        vectors = Vectors(plan, machine, gradient=False)
        updates = GradientAccumulation(
            self.optimizer,
            vectors,
            per_step=self.overlap,
            follows_shard=self.alone and self.merges,
            memory=host.memory,
        )
        sampler = Sampler(examples=self.examples, batch=plan.batch, minibatches=self.overlap, seed=self.seed)
        feed = DatasetFeed({name: file.open() for name, file in self.data.items()}, sampler)
        buffers = Buffers(plan, machine, plan.programs_for(self.kind)[machine], vectors, keep=plan.kept)
        computations = Computations(buffers, feed, updates)

        def prepare(step: RunUnit) -> None:
            updates.advance(step.updates)
            feed.choose(step.unit)

        runner = StepRunner(
            start_player(host, computations, replica=self.replica, lanes=self.threads),
            computations,
            prepare=prepare,
            finish=vectors.device.updates_were_finite,
            counted=lambda: examples_counted(plan, machine, feed.count),
            replica=self.replica,
        )
        log = PushLog(self.acknowledged, host.name, host.incarnation, shards=self.shards)
        arrays = LinkArrays(vectors, updates, log)
        earlier = pushes_of_part(self.acknowledged, host.name, before=host.incarnation)
        return self.machine_of(host.incarnation, earlier, vectors.parameters.itemsize), PartBody(
            host,
            runner,
            arrays,
            feed,
            watchdog=computations.watchdog,
            timeout_s=self.instruction_timeout_s,
        )

    def machine_of(
        self, incarnation: int, earlier: Mapping[str, tuple[PushRecord, ...]], item_bytes: int
    ) -> Part:
        """Makes the machine of the part."""
        links = ParameterLinks(
            incarnation=incarnation,
            shards=self.shard_spans,
            earlier=earlier,
            alone=self.alone,
            stateful=bool(self.optimizer.state_names),
            item_bytes=item_bytes,
        )
        delay = self.plan.programs_for(self.kind)[self.machine].pipeline.delay
        work = LeasedWork(links, delay=delay)
        return Part(self.program, work, needed=self.other_parts, watched=links.shards)

    @property
    def alone(self) -> bool:
        """Whether no other replica pushes to the shards."""
        return self.replicas == 1

    @property
    def kind(self) -> StepKind:
        """The kind of a step."""
        return StepKind(norms=self.optimizer.needs_norms, overlap=self.overlap)
