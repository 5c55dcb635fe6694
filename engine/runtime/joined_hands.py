"""Hands of a part whose work is that of all replicas of a view, which exchange vectors; its first state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from typing_extensions import override

from partita.engine.data.clients import Division
from partita.engine.files.access import HostFiles
from partita.engine.parameters.compression import Compressor
from partita.engine.parameters.compression.kept_state import own_name, state_in
from partita.engine.parameters.initial_values import initial_vector
from partita.engine.parameters.layout import Layout, gather
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.parameters.reader import Checkpoint
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.joined_work import JoinedWork
from partita.engine.protocol.kept_vector import Kept
from partita.engine.protocol.loss_scale import ScaleState
from partita.engine.protocol.names import part_name
from partita.engine.protocol.part import Part
from partita.engine.protocol.program_effects import PartSeat, RunStep, SharedSpan
from partita.engine.protocol.views import JoinedBatches
from partita.engine.runtime.buffers import Buffers, Vectors
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.exchange_arrays import ExchangeArrays, OwnState
from partita.engine.runtime.joint_sampler import JointFeed, JointSampler
from partita.engine.runtime.part_body import PartBody, step_body
from partita.engine.runtime.part_task import Hands, PartTask
from partita.engine.runtime.program_vectors import NormsLayout, ProgramVectors
from partita.engine.runtime.state_files import StateFiles
from partita.engine.runtime.task import HostContext
from partita.partitioner.ir.step_kind import StepKind


@dataclass(frozen=True, kw_only=True)
class JoinedHands(Hands):
    """Settings of a part that exchanges with other replicas alone, and keeps the parameters.

    Args:
        optimizer: of the updates; its state belongs to the part's state.
        run: the run's id.
        folder: of the checkpoints.
        checkpoint: the one to start from; None: from `initial`.
        initial: a safetensors file of whole parameters.
        draws: seed of initial parameters that are drawn in place of those of the file; None: not drawn.
        first_step: the steps that the state holds which the run began with.
        precision: of the parameters, "float32" or "float64".
        batches: of the steps.
        division: the examples of each client; None: there are no clients.
        sharded: whether no replica has the whole state.
        apart: whether each replica has parameters and a state of the optimizer of its own, which checkpoints
            then have, too, where states are `sharded`.
        unsent: see `Driver.unsent`.
        reshuffles: whether each epoch has another order of the examples.
        compress: makes the messages in the place of gradients; its state is the part's, and in checkpoints,
            where the replicas' states are `sharded`.
        kept, scratch: vectors of the driver, see `Driver.kept_vectors` and `Driver.scratch_vectors`.
        taught: minibatches of which predictions are kept, see `Driver.taught_minibatches`.
    """

    optimizer: Optimizer
    run: str
    folder: Path
    checkpoint: int | None
    initial: Path
    first_step: int
    precision: str
    batches: JoinedBatches
    division: Division | None = None
    sharded: bool = False
    apart: bool = False
    unsent: str = ""
    compress: Compressor | None = None
    reshuffles: bool = True
    kept: Mapping[str, Kept] = field(default_factory=dict)
    scratch: tuple[str, ...] = ()
    taught: int = 0
    draws: int | None = None

    @override
    def build(self, task: PartTask, host: HostContext) -> tuple[Part, PartBody]:
        plan, machine = task.plan, task.machine
        vectors, instructions = (
            Vectors(plan, machine),
            plan.programs_for(StepKind(gradients="whole"))[machine],
        )
        sampler = JointSampler(
            self.batches, seed=task.seed, ordering=task.ordering, reshuffles=self.reshuffles
        )
        opened = task.opened(host, instructions)
        feed = JointFeed(opened, sampler, batch=plan.batch, division=self.division)
        buffers = Buffers(plan, machine, instructions, vectors, keep=plan.kept)
        computations = Computations(buffers, feed, metrics=task.metrics)
        slots, norms = task.layout.machines[machine], self._norms(task)
        distillation = computations.distillation
        exchanged = ProgramVectors(
            vectors,
            self.optimizer,
            slots,
            norms=norms,
            kept=self.kept,
            scratch=self.scratch,
            predictions=self.taught * distillation.size,
            pool=computations.pool,
        )
        distillation.keep_in(exchanged.predictions)
        loaded = self._load(task, exchanged, host.files)
        exchanged.prepare(0, exchanged.size)
        arrays = ExchangeArrays(
            exchanged,
            StateFiles(host.files.checkpoints(self.folder, run=self.run), host, run=self.run),
            place=(task.replica, machine),
            updates_before=loaded.updates - loaded.step,  # in earlier runs
            writes=not self.sharded or task.replica == 0,
            own=loaded.own,
        )

        def prepare(step: RunStep) -> None:
            arrays.step, feed.loss_scale = step.step, step.loss_scale
            distillation.begin(step.entry, teaches=step.teaches, distil=step.distil)
            if step.of is not None:
                feed.choose_portion(step.of, step=step.step)
            else:
                feed.choose(step.position, rank=step.rank, replicas=step.replicas, alone=step.alone)

        body = step_body(
            host,
            computations,
            arrays,
            feed,
            prepare=prepare,
            finish=exchanged.computed,
            replica=task.replica,
            timeout_s=task.instruction_timeout_s,
            validation=task.validator(host, vectors),
        )
        seat = self._seat(task, host.incarnation, exchanged, entry_size=distillation.size, loaded=loaded)
        work = JoinedWork(seat, self.batches)
        return Part(task.program, work, version=seat.step), body

    def _norms(self, task: PartTask) -> NormsLayout | None:
        """The places of sums of squares; None where the optimizer needs none."""
        if not self.optimizer.needs_norms:
            return None
        return NormsLayout(task.replicas, len(task.plan.cluster), tuple(task.layout.shapes))

    def _load(self, task: PartTask, arrays: ProgramVectors, files: HostFiles) -> _Loaded:
        """Fills the parameters and the optimizer's state with those that the part starts from."""
        slots, shapes = task.layout.machines[task.machine], dict(task.layout.shapes)
        names = self.compress.state_names if self.compress is not None and self.sharded else ()
        apart = self.apart and self.sharded
        if self.checkpoint is None:
            if self.draws is None:
                whole = files.parameters(self.initial, shapes, only={slot.parameter for slot in slots})
                values = gather(slots, whole, self.precision)
            else:
                specs = task.plan.graph.parameters
                values = initial_vector(slots, specs, self.draws, dtype=self.precision)
            arrays.restore(values, None)
            return _Loaded(0, 0, OwnState(names, {}, apart, self.unsent) if names else None)
        found = files.checkpoints(self.folder, run=self.run).open(self.checkpoint, shapes, slots=slots)
        snapshot = found.snapshot(slots)
        arrays.restore(snapshot.values, snapshot.state)
        if apart:
            arrays.replace_own(
                {
                    name: found.gather(slots, f"state.{there}")
                    for name in ("parameters", *self.optimizer.state_names)
                    if (there := own_name(name, task.replica)) in found.state_names
                }
            )
        own = found.manifest.run == self.run
        step = max(record.version for record in found.records.values()) if own else self.first_step
        unsent = OwnState(names, self._unsent(task, found), apart, self.unsent) if names else None
        mine = found.records.get(part_name(task.replica, task.machine)) if apart else None
        scales = (record.loss_scale for record in (*filter(None, [mine]), *found.records.values()))
        return _Loaded(step, found.updates(slots), unsent, next(filter(None, scales), None))

    def _unsent(self, task: PartTask, found: Checkpoint) -> dict[str, Vector]:
        """The state of the replica's compressor in a checkpoint."""
        assert self.compress is not None
        slots = task.layout.machines[task.machine]
        return state_in(
            self.compress,
            found.state_names,
            lambda name: found.gather(slots, f"state.{name}"),
            replica=task.replica,
            replicas=task.replicas,
            same_cut=lambda name: found.holds(f"state.{name}", slots),
            kind=self.unsent,
        )

    def _seat(
        self, task: PartTask, incarnation: int, vectors: ProgramVectors, *, entry_size: int, loaded: _Loaded
    ) -> PartSeat:
        machines, norms = len(task.plan.cluster), self._norms(task)
        return PartSeat(
            replica=task.replica,
            machine=task.machine,
            machines=machines,
            incarnation=incarnation,
            size=vectors.size,
            spans=shared_spans(task.layout)[task.machine],
            norms=SharedSpan(machines, 0, norms.size, (*range(machines),)) if norms else None,
            exchanges=machines + (norms is not None),
            state=vectors.names,
            item_bytes=np.dtype(self.precision).itemsize,
            entries=self.taught,
            entry_size=entry_size,
            step=loaded.step,
            points=int(loaded.step > 0),
            loss_scale=loaded.loss_scale,
        )


@dataclass(frozen=True)
class _Loaded:
    """The state that a part starts from: the steps that it holds, its updates, also in earlier runs, what its
    replica alone has, and its loss scale.
    """

    step: int
    updates: int
    own: OwnState | None = None
    loss_scale: ScaleState | None = None


def shared_spans(layout: Layout) -> tuple[tuple[SharedSpan, ...], ...]:
    """Returns the ranges of each machine's vector by the machines that hold their numbers.

    Every number belongs to one machine of a replica, also one of weights that several machines use: within a
    step the others receive such weights from their owner, and send it their gradients. So a range is a whole
    vector, which replicas exchange among the parts of one machine; none where a machine has no parameters.
    """
    found = []
    for machine, slots in enumerate(layout.machines):
        size, shapes = (
            layout.machine_size(machine),
            tuple(layout.tensor(slot) for slot in slots if slot.size),
        )
        found.append((SharedSpan(machine, 0, size, (machine,), shapes),) if size else ())
    return tuple(found)
