"""Hands of a part whose work is leased, and whose shards apply each push on arrival.

Fetch, push and compute run side by side (DistBelief, section 4.1): the host's thread sends and receives, the
player's threads compute, and parameters are replaced only between two steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy.typing as npt
from typing_extensions import override

from partita.engine.parameters.compression import Compressor
from partita.engine.parameters.compression.kept_state import state_in
from partita.engine.parameters.formats import CheckpointError
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.parameters.reader import Checkpoint
from partita.engine.parameters.slots import Slot, within
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.leased_work import LeasedWork, RunUnit
from partita.engine.protocol.parameter_links import ParameterLinks
from partita.engine.protocol.part import Part
from partita.engine.runtime.buffers import Buffers, Vectors
from partita.engine.runtime.changes import ChangeAccumulation, PushedChanges
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.elastic_updates import ElasticUpdates
from partita.engine.runtime.feed import DatasetFeed, Sampler
from partita.engine.runtime.link_arrays import LinkArrays
from partita.engine.runtime.local_optimizer import HeldState
from partita.engine.runtime.part_body import PartBody, step_body
from partita.engine.runtime.part_task import Hands, PartTask
from partita.engine.runtime.push_messages import PushMessages, form_of
from partita.engine.runtime.task import HostContext
from partita.engine.runtime.updates import GradientAccumulation
from partita.partitioner.ir.program import Program as Instructions
from partita.partitioner.ir.step_kind import StepKind


@dataclass(frozen=True, kw_only=True)
class LeasedHands(Hands):
    """Settings of a part that exchanges with shards alone.

    Args:
        optimizer: updates the part's own parameters between two fetches.
        acknowledged: folder in which parts note the pushes that shards have acknowledged.
        run: the run's id.
        folder: for checkpoints.
        checkpoint: the one that the shards started from, whose state of the optimizer the part's own steps
            begin with; None: there is none yet.
        earlier: for each stream, the records of the part's earlier processes, ascending.
        changes: what is pushed are changes of parameters, by an optimizer whose state is the part's own.
        minibatches: of a step, see `Driver.minibatches`.
        merges: a push changes the parameters otherwise than its steps do, one after another.
        compress: makes the messages of pushes; None: they are whole gradients.
        reports_each: the coordinator is told of each step at once, as others wait for it.
        moves_by: see `Driver.moves_by`.
        unsent: the kind of what messages lack, with which the first process of a part goes on from a
            checkpoint, see `Driver.unsent`; None: it begins without.
    """

    optimizer: Optimizer
    acknowledged: Path
    run: str
    folder: Path
    checkpoint: int | None
    earlier: Mapping[str, tuple[PushRecord, ...]] = field(default_factory=dict)
    changes: bool = False
    minibatches: int = 1
    merges: bool = False
    compress: Compressor | None = None
    reports_each: bool = False
    moves_by: float | None = None
    unsent: str | None = None

    @override
    def build(self, task: PartTask, host: HostContext) -> tuple[Part, PartBody]:
        plan, minibatches = task.plan, self.minibatches
        vectors = Vectors(plan, task.machine, gradient=self.optimizer.needs_norms)
        held = None if self.changes else self._held(task, host, vectors.dtype)
        updates = self._updates(task, host, vectors, held)
        sampler = Sampler(
            examples=task.examples,
            batch=plan.batch,
            minibatches=minibatches,
            seed=task.seed,
            ordering=task.ordering,
        )
        instructions = self._instructions(task)
        feed = DatasetFeed(task.opened(host, instructions), sampler)
        links = self._links(task, host.incarnation, vectors.parameters.itemsize, held)
        work = LeasedWork(links, delay=instructions.pipeline.delay, reports_each=self.reports_each)
        buffers = Buffers(plan, task.machine, instructions, vectors, keep=plan.kept)
        computations = Computations(buffers, feed, updates, metrics=task.metrics)

        def prepare(step: RunUnit) -> None:
            own_steps = step.step if self.moves_by is None else step.unit
            updates.advance(own_steps if self.changes else step.updates, step.scale)
            feed.choose(step.unit, lambda count: work.leases.following(step.step, count))

        incarnation = host.incarnation
        cut = {"shards": task.shards, "fragments": task.fragments}
        log = host.files.push_log(self.acknowledged, host.name, incarnation, **cut)
        body = step_body(
            host,
            computations,
            LinkArrays(vectors, updates, log),
            feed,
            prepare=prepare,
            finish=vectors.device.updates_were_finite,
            replica=task.replica,
            timeout_s=task.instruction_timeout_s,
            validation=task.validator(host, vectors),
        )
        machine = Part(task.program, work, needed=task.other_parts, watched=links.shards)
        return machine, body

    def _updates(
        self, task: PartTask, host: HostContext, vectors: Vectors, held: HeldState | None
    ) -> GradientAccumulation | PushedChanges:
        messages = self._messages(task, host, vectors)
        if self.moves_by is not None:
            alpha, memory = self.moves_by, host.memory
            return ElasticUpdates(self.optimizer, vectors, moves_by=alpha, memory=memory, messages=messages)
        if self.changes:
            return ChangeAccumulation(self.optimizer, vectors, memory=host.memory, messages=messages)
        return GradientAccumulation(
            self.optimizer,
            vectors,
            per_step=self.minibatches,
            follows_shard=task.replicas == 1 and self.merges,
            memory=host.memory,
            held=held,
            replicas=task.replicas,
            messages=messages,
        )

    def _messages(self, task: PartTask, host: HostContext, vectors: Vectors) -> PushMessages | None:
        """The messages of the part's pushes; None where they are whole gradients."""
        if self.compress is None:
            return None
        item_bytes = vectors.dtype.itemsize
        forms = {
            shared.machine_start: form_of(self.compress, task.layout, shared, item_bytes)
            for shared in task.layout.shards_of(task.machine)
        }
        return PushMessages(forms, vectors.tables, vectors.device, self._kept(task, host))

    def _kept(self, task: PartTask, host: HostContext) -> dict[int, dict[str, Vector]]:
        """Returns what the part's messages have lacked, in the checkpoint from which the shards go on, too.

        A part that is started again has pushed since then, and begins without.
        """
        if self.compress is None or self.unsent is None or self.checkpoint is None or host.incarnation:
            return {}
        slots, shapes = task.layout.machines[task.machine], dict(task.layout.shapes)
        try:
            checkpoints = host.files.checkpoints(self.folder, run=self.run)
            found = checkpoints.open(self.checkpoint, shapes, slots=slots)
            return {
                shared.machine_start: self._state(
                    task, found, [*within(slots, shared.machine_start, shared.machine_stop)]
                )
                for shared in task.layout.shards_of(task.machine)
            }
        except (CheckpointError, OSError):
            return {}

    def _state(self, task: PartTask, found: Checkpoint, slots: Sequence[Slot]) -> dict[str, Vector]:
        """The state of the encoder of some slots in a checkpoint."""
        assert self.compress is not None and self.unsent is not None
        return state_in(
            self.compress.alone,
            found.state_names,
            lambda name: found.gather(slots, f"state.{name}"),
            replica=task.replica,
            replicas=task.replicas,
            same_cut=lambda name: found.holds(f"state.{name}", slots),
            kind=self.unsent,
        )

    def _held(self, task: PartTask, host: HostContext, dtype: npt.DTypeLike) -> HeldState | None:
        """The optimizer's state in the checkpoint. Steps between two fetches are estimates: any will do."""
        if self.checkpoint is None or not self.optimizer.state_names:
            return None
        slots, shapes = task.layout.machines[task.machine], dict(task.layout.shapes)
        try:
            checkpoints = host.files.checkpoints(self.folder, run=self.run)
            found = checkpoints.open(self.checkpoint, shapes, slots=slots)
            state = {name: found.gather(slots, f"state.{name}") for name in self.optimizer.state_names}
        except (CheckpointError, OSError):
            return None
        vectors = {name: vector.astype(dtype, copy=False) for name, vector in state.items()}
        return HeldState(vectors, found.updates(slots))

    def _links(
        self, task: PartTask, incarnation: int, item_bytes: int, held: HeldState | None
    ) -> ParameterLinks:
        links = ParameterLinks(
            incarnation=incarnation,
            streams=task.streams,
            earlier=self.earlier,
            alone=task.replicas == 1 and not self.changes,
            stateful=bool(self.optimizer.state_names),
            state_updates=held.updates if held else 0,
            item_bytes=item_bytes,
            moves=self.changes,
        )
        links.take_rows(task.rows_bytes)
        return links

    def _instructions(self, task: PartTask) -> Instructions:
        kind = StepKind(norms=self.optimizer.needs_norms, overlap=self.minibatches)
        return task.plan.programs_for(kind)[task.machine]
