"""A shard under batch optimisation: the interpreter of the machine of vectors over a store and files."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.files import load_parameters
from partita.engine.parameters.layout import Layout, gather
from partita.engine.parameters.storage import Snapshot
from partita.engine.parameters.vector import Vector
from partita.engine.parameters.vectors import VectorStore, make_ready
from partita.engine.protocol.commands import POINT, reads, writes
from partita.engine.protocol.events import NotPersisted, Persist, Persisted, Refuse, Send, Span
from partita.engine.protocol.lease import Fenced
from partita.engine.protocol.membership import DEFAULT_HEARTBEATS, HeartbeatPolicy
from partita.engine.protocol.messages import Command, Contribution, FetchPoint
from partita.engine.protocol.names import shard_name
from partita.engine.protocol.vector_shard import (
    AddGradient,
    DropGradients,
    LoadCheckpoint,
    MoveGradient,
    OperationsDone,
    RunOperations,
    StoreGradient,
    VectorShard,
    VectorShardEffect,
    VectorShardEvent,
)
from partita.engine.runtime.background import BackgroundQueue
from partita.engine.runtime.checkpoint_writer import CheckpointWriter
from partita.engine.runtime.gradient_pool import GradientPool
from partita.engine.runtime.leased_role import LeasedRole
from partita.engine.runtime.task import CannotGoOn, HostContext
from partita.engine.transport.payload import Payload

AT_ONCE: Final = 1 << 23
"""Operations on so many numbers are done on the host's thread: about 10 ms, of which a thread and its waking
would cost some percent. Longer ones are done beside it, while it answers.
"""


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
        unit_size: portions in a work unit.
        pace: of the coordinator.
    """

    shard: int
    layout: Layout
    run: str
    folder: Path
    checkpoint: int | None
    initial: Path
    precision: str
    unit_size: int
    heartbeats: HeartbeatPolicy = DEFAULT_HEARTBEATS

    @property
    def threads(self) -> int:
        """See `HostTask`."""
        return 1

    @property
    def rank(self) -> tuple[int, int]:
        """See `HostTask`."""
        return 0, 1

    def role(self, link: HostContext) -> VectorShardRole:
        """See `HostTask`."""
        return VectorShardRole(self, link)


class VectorShardRole(LeasedRole):
    """Holds a slice of every vector; adds up gradients for the machines whose parameters they are of."""

    def __init__(self, task: VectorShardTask, link: HostContext) -> None:
        self._task, self._link = task, link
        self._slots = task.layout.slots_of(task.shard)
        self._checkpoints = Checkpoints(task.folder, run=task.run)
        self._closing = threading.Event()
        self._store = VectorStore(np.zeros(sum(slot.size for slot in self._slots), task.precision))
        self.version = self._go_back(task.checkpoint)
        make_ready(self._store.dtype)
        ranges = {o.machine: (o.shard_start, o.shard_stop) for o in task.layout.machines_of(task.shard)}
        sizes = {machine: stop - start for machine, (start, stop) in ranges.items()}
        self._gradients = GradientPool(sizes, task.precision)
        self._machine = VectorShard(
            link.name,
            epoch=link.incarnation,
            ranges=ranges,
            unit_size=task.unit_size,
            number=self.version,
            item_bytes=self._store.dtype.itemsize,
            lease_s=task.heartbeats.lease_s,
            heartbeat_s=task.heartbeats.heartbeat_s,
        )
        self._snapshots: deque[Snapshot] = deque()  # that are being written, in order
        self._beside: BackgroundQueue[OperationsDone] = BackgroundQueue("vectors", link.wake)
        writer = CheckpointWriter(self._checkpoints, self._slots, task.run, link)
        super().__init__(self._machine, writer, waiting=(Command, FetchPoint, Contribution))

    def wakened(self, now: float) -> None:
        """Also, what takes long is done."""
        for done in self._beside.finished():
            self._tell(done, now)
        super().wakened(now)

    def close(self) -> None:
        """Waits for the operation, and for the file, that is under way."""
        self._closing.set()
        self._beside.close()
        super().close()

    def _go_back(self, checkpoint: int | None) -> int:
        """All vectors become what they were in a checkpoint, or were first; returns the number of the last
        command by then.

        Commands count from 0 again in each run.
        """
        task, shapes = self._task, dict(self._task.layout.shapes)
        if checkpoint is None:
            held = {slot.parameter for slot in self._slots}
            whole = load_parameters(task.initial, shapes, only=held)
            self._store.refill((POINT,), lambda _, out: gather(self._slots, whole, out=out))
            return 0
        found = self._checkpoints.open(checkpoint, shapes, slots=self._slots)

        def fill(name: str, out: Vector) -> None:
            kind = "values" if name == POINT else f"state.{name}"
            found.gather(self._slots, kind, out=out)
            self._heed()

        self._store.refill((POINT, *found.state_names), fill)
        record = found.records.get(shard_name(task.shard))
        return record.version if record is not None and record.run == task.run else 0

    def _tell(self, event: VectorShardEvent, now: float) -> None:
        if isinstance(event, Persisted | NotPersisted):
            self._store.release(self._snapshots.popleft())
        began = time.monotonic()
        effects = self._machine.receive(event, now)
        while effects:
            last = effects[-1]
            for effect in effects:
                self._carry_out(effect, now=now, began=began)
            if not isinstance(last, RunOperations | LoadCheckpoint):
                return
            if self._numbers(last) > AT_ONCE:
                self._beside.start(partial(self._done, last))
                return
            effects = self._machine.receive(self._done(last), now + time.monotonic() - began)

    def _carry_out(self, effect: VectorShardEffect, *, now: float, began: float) -> None:
        match effect:
            case StoreGradient(machine=machine, unit=unit, payload=payload):
                assert isinstance(payload, Payload)
                self._gradients.keep(machine, unit, payload)
            case AddGradient(machine=machine, into=into, of=of):
                self._gradients.join(machine, into, of)
            case Send(to=to, message=message, payload=span):
                numbers = None if span is None else self._store.vector(span.vector)[_slice(span)]
                self._say(to, message, numbers, now=now, began=began)
            case MoveGradient(machine=machine, unit=unit, span=settled):
                self._settle(machine, unit, settled)
            case Persist():
                self._snapshots.append(self._store.snapshot())
                self._writer.write(effect, self._snapshots[-1], finite=False)
            case DropGradients():
                self._gradients.drop()
            case Fenced(epoch=epoch):
                raise self._replaced(epoch)
            case Refuse(sender=sender, reason=reason):
                self._link.refuse(sender, reason)

    def _numbers(self, effect: RunOperations | LoadCheckpoint) -> float:
        """How many are read or written, about; files have no bound."""
        if isinstance(effect, LoadCheckpoint):
            return math.inf
        vectors = sum(len(reads(one)) + len(writes(one)) for one in effect.operations)
        return vectors * self._store.size

    def _done(self, effect: RunOperations | LoadCheckpoint) -> OperationsDone:
        """Does it; on the host's thread, or beside it."""
        if isinstance(effect, LoadCheckpoint):
            # None is what this run began with: the checkpoint that it was resumed from, if it was.
            checkpoint = effect.checkpoint
            self._go_back(self._task.checkpoint if checkpoint is None else checkpoint)
            return OperationsDone()
        scalars: list[float] = []
        for operation in effect.operations:
            self._heed()
            try:
                scalars += self._store.do(operation)
            except ValueError as error:
                raise CannotBeDone(f"a {type(operation).__name__} cannot be done: {error}") from error
        return OperationsDone(scalars)

    def _heed(self) -> None:
        """What is under way ends with the host: nobody will ask for it."""
        if self._closing.is_set():
            raise RuntimeError(f"{self._link.name} is closed")

    def _settle(self, machine: int, unit: int, span: Span) -> None:
        try:
            vector = self._store.target(span.vector)
        except ValueError as error:
            raise CannotBeDone(f"an evaluation cannot be done: {error}") from error
        self._gradients.move(machine, unit, vector[_slice(span)])


def _slice(span: Span) -> slice:
    return slice(span.start, span.stop)
