"""A shard under Sandblaster: the interpreter of the machine of vectors over a store and files."""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from typing_extensions import override

from partita.engine.parameters.layout import gather
from partita.engine.parameters.storage import ShardSnapshot
from partita.engine.parameters.vector import Vector
from partita.engine.parameters.vectors import VectorStore, compile_operations
from partita.engine.protocol.commands import POINT, reads, writes
from partita.engine.protocol.events import NotPersisted, Persist, Persisted, Refuse, Send, Span
from partita.engine.protocol.lease import Fenced
from partita.engine.protocol.messages import Command, Contribution, FetchPoint
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
from partita.engine.runtime.gradient_pool import GradientPool
from partita.engine.runtime.shard_role import ShardRole, ShardTask
from partita.engine.runtime.task import CannotGoOn, HostContext
from partita.engine.transport.payload import Payload

SHORT_OPERATION: Final = 1 << 23
"""Operations on so many numbers are done on the host's thread: about 10 ms, of which a thread and its waking
would cost some percent. Longer ones are done in the background, while the host answers.
"""


class CannotBeDone(CannotGoOn):
    """A command that no shard can carry out; the method is at fault."""


@dataclass(frozen=True, kw_only=True)
class SandblasterShardTask(ShardTask):
    """One shard of the vectors. `initial` holds `x`, and no other vector.

    Args:
        unit_size: portions in a work unit.
    """

    unit_size: int

    @override
    def role(self, host: HostContext) -> SandblasterShardRole:
        return SandblasterShardRole(self, host)


class SandblasterShardRole(ShardRole):
    """Holds a slice of every vector, and adds up gradients for the machines whose parameters these are."""

    _machine: VectorShard

    def __init__(self, task: SandblasterShardTask, host: HostContext) -> None:
        super().__init__(task, host, waiting=(Command, FetchPoint, Contribution))
        self._task = task
        self._closing = threading.Event()
        self._store = VectorStore(np.zeros(sum(slot.size for slot in self._slots), task.precision))
        self.version = self._load(task.checkpoint)
        compile_operations(self._store.dtype)
        ranges = {o.machine: (o.shard_start, o.shard_stop) for o in task.layout.machines_of(task.shard)}
        sizes = {machine: stop - start for machine, (start, stop) in ranges.items()}
        self._gradients = GradientPool(sizes, task.precision)
        self._machine = VectorShard(
            host.name,
            incarnation=host.incarnation,
            ranges=ranges,
            unit_size=task.unit_size,
            number=self.version,
            item_bytes=self._store.dtype.itemsize,
            heartbeats=task.heartbeats,
        )
        self._snapshots: deque[ShardSnapshot] = deque()  # that are being written, in order
        self._operations: BackgroundQueue[OperationsDone] = BackgroundQueue("vectors", host.wake)

    def poll(self, now: float) -> None:
        """Reports operations that were done in the background, and files."""
        for done in self._operations.finished():
            self._handle(done, now)
        super().poll(now)

    def close(self) -> None:
        """Waits for the operation and the file that are under way."""
        self._closing.set()
        self._operations.close()
        super().close()

    def _load(self, checkpoint: int | None) -> int:
        """Loads all vectors from a checkpoint, or the first point; returns the number of the last command."""
        if checkpoint is None:
            whole = self._initial(self._task.initial)
            self._store.refill((POINT,), lambda _, out: gather(self._slots, whole, out=out))
            return 0
        found = self._checkpoints.open(checkpoint, dict(self._layout.shapes), slots=self._slots)

        def fill(name: str, out: Vector) -> None:
            kind = "values" if name == POINT else f"state.{name}"
            found.gather(self._slots, kind, out=out)
            self._check_open()

        self._store.refill((POINT, *found.state_names), fill)
        return self._version_of(found)

    def _react(self, event: VectorShardEvent, now: float) -> None:
        if isinstance(event, Persisted | NotPersisted):
            self._store.release(self._snapshots.popleft())
        effects = self._machine.receive(event, now)
        while effects:
            last = effects[-1]
            for effect in effects:
                self._carry_out(effect)
            if not isinstance(last, RunOperations | LoadCheckpoint):
                return
            if self._numbers(last) > SHORT_OPERATION:
                self._operations.start(partial(self._run_operations, last))
                return
            effects = self._machine.receive(self._run_operations(last), self._now)

    def _carry_out(self, effect: VectorShardEffect) -> None:
        match effect:
            case StoreGradient(machine=machine, unit=unit, payload=payload):
                assert isinstance(payload, Payload)
                self._gradients.store(machine, unit, payload)
            case AddGradient(machine=machine, into=into, of=of):
                self._gradients.add(machine, into, of)
            case Send(to=to, message=message, payload=span):
                self._send(
                    to, message, None if span is None else self._store.vector(span.vector)[_slice(span)]
                )
            case MoveGradient(machine=machine, unit=unit, span=span):
                self._move(machine, unit, span)
            case Persist():
                self._snapshots.append(self._store.snapshot())
                self._write(effect, self._snapshots[-1], finite=False)
            case DropGradients():
                self._gradients.drop()
            case Fenced(incarnation=incarnation):
                raise self._replaced(incarnation)
            case Refuse(sender=sender, reason=reason):
                self._host.refuse(sender, reason)

    def _numbers(self, effect: RunOperations | LoadCheckpoint) -> float:
        """About how many numbers are read or written; files have no bound."""
        if isinstance(effect, LoadCheckpoint):
            return math.inf
        vectors = sum(len(reads(one)) + len(writes(one)) for one in effect.operations)
        return vectors * self._store.size

    def _run_operations(self, effect: RunOperations | LoadCheckpoint) -> OperationsDone:
        """Runs operations, on the host's thread or in the background."""
        if isinstance(effect, LoadCheckpoint):
            # None is what this run began with: the checkpoint that it was resumed from, if it was.
            checkpoint = effect.checkpoint
            self._load(self._task.checkpoint if checkpoint is None else checkpoint)
            return OperationsDone()
        scalars: list[float] = []
        for operation in effect.operations:
            self._check_open()
            try:
                scalars += self._store.execute(operation)
            except ValueError as error:
                raise CannotBeDone(f"a {type(operation).__name__} cannot be done: {error}") from error
        return OperationsDone(scalars)

    def _check_open(self) -> None:
        """Ends an operation when the host ends: nobody will ask for its result."""
        if self._closing.is_set():
            raise RuntimeError(f"{self._host.name} is closed")

    def _move(self, machine: int, unit: int, span: Span) -> None:
        try:
            vector = self._store.target(span.vector)
        except ValueError as error:
            raise CannotBeDone(f"an evaluation cannot be done: {error}") from error
        self._gradients.move(machine, unit, vector[_slice(span)])


def _slice(span: Span) -> slice:
    return slice(span.start, span.stop)
