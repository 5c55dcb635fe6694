"""A shard under batch optimisation: the interpreter of the machine of vectors over a store and files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.files import load_parameters
from partita.engine.parameters.layout import Layout, gather
from partita.engine.parameters.storage import Snapshot
from partita.engine.parameters.vectors import VectorStore, make_ready
from partita.engine.protocol.events import Persist, Refuse, Send, Span
from partita.engine.protocol.lease import Fenced
from partita.engine.protocol.messages import Command, Contribution, FetchPoint
from partita.engine.protocol.names import shard_name
from partita.engine.protocol.vector_shard import (
    Do,
    Done,
    Drop,
    Join,
    Keep,
    Revert,
    Settle,
    VectorShard,
    VectorShardEffect,
    VectorShardEvent,
)
from partita.engine.runtime.gradients import Gradients
from partita.engine.runtime.leased import LeasedRole
from partita.engine.runtime.task import CannotGoOn, Link
from partita.engine.runtime.writing import Writer
from partita.engine.transport.payload import Payload


class CannotBeDone(CannotGoOn):
    """A command asks for what no shard can do. One sentence, of the method."""


@dataclass(frozen=True)
class VectorShardTask:
    """One shard of the vectors.

    Args:
        shard: which.
        layout: where every parameter is.
        run: the run's id.
        folder: of the checkpoints.
        checkpoint: the one to start from, of this driver; None starts from `initial`.
        initial: a safetensors file of whole parameters: `x`, and no other vector.
        precision: of all numbers, "float32" or "float64".
        stretch: portions in a stretch.
    """

    shard: int
    layout: Layout
    run: str
    folder: Path
    checkpoint: int | None
    initial: Path
    precision: str
    stretch: int

    @property
    def threads(self) -> int:
        """See `Task`."""
        return 1

    @property
    def rank(self) -> tuple[int, int]:
        """See `Task`."""
        return 0, 1

    def role(self, link: Link) -> VectorShardRole:
        """See `Task`."""
        return VectorShardRole(self, link)


class VectorShardRole(LeasedRole):
    """Holds a slice of every vector; adds up gradients for the machines whose parameters they are of."""

    def __init__(self, task: VectorShardTask, link: Link) -> None:
        self._task, self._link = task, link
        self._slots = task.layout.slots_of(task.shard)
        self._checkpoints = Checkpoints(task.folder)
        snapshot, self.version = self._held_by(task.checkpoint)
        self._store = VectorStore(snapshot.values, snapshot.state, dtype=task.precision)
        make_ready(self._store.dtype)
        ranges = {o.machine: (o.shard_start, o.shard_stop) for o in task.layout.machines_of(task.shard)}
        sizes = {machine: stop - start for machine, (start, stop) in ranges.items()}
        self._gradients = Gradients(sizes, task.precision)
        self._machine = VectorShard(
            link.name,
            epoch=link.incarnation,
            ranges=ranges,
            stretch=task.stretch,
            number=self.version,
            item_bytes=self._store.dtype.itemsize,
        )
        writer = Writer(self._checkpoints, self._slots, task.run, link)
        super().__init__(self._machine, writer, waiting=(Command, FetchPoint, Contribution))

    def _held_by(self, checkpoint: int | None) -> tuple[Snapshot, int]:
        """What this shard's vectors were in a checkpoint, and the number of its last command by then.

        Commands count from 0 again in each run.
        """
        task, shapes = self._task, dict(self._task.layout.shapes)
        if checkpoint is None:
            return Snapshot(gather(self._slots, load_parameters(task.initial, shapes), task.precision)), 0
        found = self._checkpoints.open(checkpoint, shapes)
        record = found.records.get(shard_name(task.shard))
        number = record.version if record is not None and record.run == task.run else 0
        return found.snapshot(self._slots), number

    def _tell(self, event: VectorShardEvent, now: float) -> None:
        effects = self._machine.receive(event, now)
        while effects:
            last = effects[-1]
            for effect in effects:
                self._carry_out(effect)
            effects = self._machine.receive(self._do(last), now) if isinstance(last, Do) else []

    def _carry_out(self, effect: VectorShardEffect) -> None:
        match effect:
            case Keep(machine=machine, stretch=stretch, payload=payload):
                assert isinstance(payload, Payload)
                self._gradients.keep(machine, stretch, payload)
            case Join(machine=machine, into=into, of=of):
                self._gradients.join(machine, into, of)
            case Send(to=to, message=message, payload=span):
                numbers = None if span is None else self._store.vector(span.vector)[_slice(span)]
                self._link.send(to, message, numbers)
            case Settle(machine=machine, stretch=stretch, span=settled):
                self._settle(machine, stretch, settled)
            case Persist():
                self._writer.write(effect, self._store.snapshot(), finite=False)
            case Revert(checkpoint=checkpoint):
                # None is what this run began with: the checkpoint that it was resumed from, if it was.
                earlier = self._task.checkpoint if checkpoint is None else checkpoint
                self._store.restore(self._held_by(earlier)[0])
            case Drop():
                self._gradients.drop()
            case Fenced(epoch=epoch):
                raise self._replaced(epoch)
            case Refuse(sender=sender, reason=reason):
                self._link.refuse(sender, reason)

    def _do(self, do: Do) -> Done:
        scalars: list[float] = []
        for operation in do.operations:
            try:
                scalars += self._store.do(operation)
            except ValueError as error:
                raise CannotBeDone(f"a {type(operation).__name__} cannot be done: {error}") from error
        return Done(scalars)

    def _settle(self, machine: int, stretch: int, span: Span) -> None:
        try:
            vector = self._store.target(span.vector)
        except ValueError as error:
            raise CannotBeDone(f"an evaluation cannot be done: {error}") from error
        self._gradients.move(machine, stretch, vector[_slice(span)])


def _slice(span: Span) -> slice:
    return slice(span.start, span.stop)
