"""Parts of program drivers: what they are set up with, and the state that they start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.files import load_parameters
from partita.engine.parameters.layout import Layout, gather
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.protocol.actions import Program
from partita.engine.protocol.program_effects import PartSeat, SharedSpan
from partita.engine.protocol.views import JoinedBatches, Member
from partita.engine.runtime.feed import Examples
from partita.engine.runtime.joint_sampler import JointFeed, JointSampler
from partita.engine.runtime.part_task import PartTask
from partita.engine.runtime.program_vectors import NormsLayout, ProgramVectors
from partita.partitioner.ir.program import Program as Instructions
from partita.partitioner.ir.step_kind import StepKind


@dataclass(frozen=True, kw_only=True)
class PartSettings(PartTask):
    """The settings of one part of a program driver, without shards.

    Args:
        plan, machine, replica, replicas, data, examples, seed, shards, instruction_timeout_s: see `PartTask`.
        program: the driver's `replica`.
        optimizer: of the updates; its state belongs to the part's state.
        run: the run's id.
        folder: of the checkpoints.
        checkpoint: the one to start from; None: from `initial`.
        initial: a safetensors file of whole parameters.
        first_step: the steps that the state holds which the run began with.
        precision: of the parameters, "float32" or "float64".
        sharded: whether each replica keeps the optimizer's state up to date for its own ranges alone.
    """

    program: Callable[[Member], Program]
    optimizer: Optimizer
    run: str
    folder: Path
    checkpoint: int | None
    initial: Path
    first_step: int
    precision: str
    sharded: bool = False

    @property
    def instructions(self) -> Instructions:
        """The program of a step, which leaves the whole gradient."""
        return self.plan.programs_for(StepKind(gradients="whole"))[self.machine]

    @property
    def batches(self) -> JoinedBatches:
        """The joined batches of the run."""
        return JoinedBatches(self.examples, self.plan.batch)

    @property
    def norms(self) -> NormsLayout | None:
        """The places of sums of squares; None where the optimizer needs none."""
        if not self.optimizer.needs_norms:
            return None
        return NormsLayout(self.replicas, len(self.plan.cluster), tuple(self.layout.shapes))

    def feed(self) -> JointFeed:
        """Makes the source of the part's examples."""
        sampler = JointSampler(examples=self.examples, batch=self.plan.batch, seed=self.seed)
        return JointFeed(Examples({name: file.open() for name, file in self.data.items()}), sampler)

    def checkpoints(self) -> Checkpoints:
        """Opens the folder of the checkpoints."""
        return Checkpoints(self.folder, run=self.run)

    def load(self, arrays: ProgramVectors) -> LoadedState:
        """Fills the parameters and the optimizer's state with those that the part starts from."""
        slots, shapes = self.layout.machines[self.machine], dict(self.layout.shapes)
        if self.checkpoint is None:
            whole = load_parameters(self.initial, shapes, only={slot.parameter for slot in slots})
            arrays.restore(gather(slots, whole, self.precision), None)
            return LoadedState(0, 0)
        found = self.checkpoints().open(self.checkpoint, shapes, slots=slots)
        snapshot = found.snapshot(slots)
        arrays.restore(snapshot.values, snapshot.state)
        own = found.manifest.run == self.run
        step = max(record.version for record in found.records.values()) if own else self.first_step
        return LoadedState(step, found.updates(slots))

    def seat(self, incarnation: int, *, size: int, state: tuple[str, ...], step: int) -> PartSeat:
        """Returns what the machine of the part must know.

        Args:
            incarnation: of the process.
            size: of the part's vectors.
            state: the names of those that are its state.
            step: the steps that they hold.
        """
        machines = len(self.plan.cluster)
        return PartSeat(
            replica=self.replica,
            machine=self.machine,
            machines=machines,
            incarnation=incarnation,
            size=size,
            spans=shared_spans(self.layout)[self.machine],
            norms=SharedSpan(machines, 0, self.norms.size, (*range(machines),)) if self.norms else None,
            exchanges=machines + (self.norms is not None),
            state=state,
            item_bytes=np.dtype(self.precision).itemsize,
            step=step,
        )


@dataclass(frozen=True)
class LoadedState:
    """The state that a part starts from.

    Args:
        step: the steps that it holds.
        updates: the updates of its numbers, also in earlier runs, for schedules.
    """

    step: int
    updates: int


def shared_spans(layout: Layout) -> tuple[tuple[SharedSpan, ...], ...]:
    """Returns the ranges of each machine's vector by the machines that hold their numbers.

    Every number belongs to one machine of a replica, also one of weights that several machines use: within a
    step the others receive such weights from their owner, and send it their gradients. So a range is a whole
    vector, which replicas exchange among the parts of one machine; none where a machine has no parameters.
    """
    sizes = (layout.machine_size(machine) for machine in range(len(layout.machines)))
    return tuple(
        (SharedSpan(machine, 0, size, (machine,)),) if size else () for machine, size in enumerate(sizes)
    )
