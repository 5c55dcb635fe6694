"""The body of a shard: its machine's effects over a store of named vectors, files, and threads."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
from typing_extensions import override

from partita.engine.files.background import BackgroundQueue
from partita.engine.numerics.row_gradient import Rows
from partita.engine.parameters.row_payload import Piece, RowPiece, encode
from partita.engine.parameters.slots import clipped, outside
from partita.engine.parameters.snapshot import NotFinite, ShardSnapshot
from partita.engine.parameters.storage import Updater
from partita.engine.parameters.vector import Vector
from partita.engine.parameters.vectors import WORTH_SHARING, VectorStore, compile_operations
from partita.engine.protocol.apply_on_arrival import MOST_CHANGES, RestoredState
from partita.engine.protocol.commands import POINT, n_vectors
from partita.engine.protocol.durability import BeginSegment, Keep, RemoveRecords
from partita.engine.protocol.durability.fill import ALL_VECTORS, WriteChunk
from partita.engine.protocol.durability.settings import Replicated
from partita.engine.protocol.events import Persist, Send, Span
from partita.engine.protocol.messages import Parameters
from partita.engine.protocol.names import stream_name
from partita.engine.protocol.shard_effects import (
    AddGradient,
    ApplyGradient,
    Compensate,
    CopyTaken,
    DropGradients,
    Fenced,
    KeepUnsent,
    LoadCheckpoint,
    LongEffect,
    MoveGradient,
    OperationsDone,
    Policy,
    ReceiveAgain,
    ReleaseCopy,
    RunOperations,
    ShardEffect,
    ShardEvent,
    ShardRanges,
    StoreGradient,
    SumsTaken,
    TakeCopy,
    TakeSums,
    WriteFile,
    WriteVector,
)
from partita.engine.protocol.staleness import Compensated
from partita.engine.runtime.delay_compensation import DelayCompensation
from partita.engine.runtime.gradient_pool import GradientPool
from partita.engine.runtime.shard_policies import ApplyPolicy
from partita.engine.runtime.shard_records import ShardRecords
from partita.engine.runtime.shard_recovery import Base
from partita.engine.runtime.shard_settings import ShardSettings
from partita.engine.runtime.shard_start import VectorLoader
from partita.engine.runtime.state_files import StateFiles
from partita.engine.runtime.task import Body, CannotGoOn, HostContext
from partita.engine.runtime.unsent_of_parts import UnsentOfParts
from partita.engine.transport.payload import Payload, PayloadLike, Versioned

SHORT_OPERATION: Final = 1 << 23
"""Operations on so many numbers are done on the host's thread: about 10 ms, of which a thread and its waking
would cost some percent. Longer ones are done in the background, while the host answers.
"""


_NO_ROWS: Final = np.zeros(0, np.int64)


class SpoiltPush(CannotGoOn):
    """A push that is not finite: the shard's values are lost, and its last checkpoint is what is left."""


class CannotBeDone(CannotGoOn):
    """A command that no shard can carry out; the method is at fault."""


class ShardBody(Body):
    """A slice of every vector, and gradients for the machines whose parameters these are."""

    def __init__(self, task: ShardSettings, host: HostContext, *, is_empty: bool = False) -> None:
        """Loads the numbers, unless another copy of the shard sends all of them (`is_empty`)."""
        self._task, self._host = task, host
        self._slots = task.layout.slots_of(task.shard)
        self._tables = task.layout.tables_on(task.shard) if task.policy.optimizer else ()
        self._reader = task.reader()
        self._checkpoints = host.files.checkpoints(task.folder, run=task.run)
        self._closing = threading.Event()
        size = sum(slot.size for slot in self._slots)
        self._store = VectorStore(np.zeros(size, task.precision), memory=host.memory)
        self._is_empty = is_empty
        empty = Base(None, RestoredState(), self._store.target(POINT))
        self._records = ShardRecords(task, host)
        self._loader = VectorLoader(task, host, self._checkpoints, self._store, check_open=self._check_open)
        self._base = empty if is_empty else self._loader.begin(self._records.notes)
        self._updater = self._prepared()
        self._compensation = self._compensating()
        overlaps = task.layout.machines_of(task.shard)
        sizes = {o.machine: o.shard_stop - o.shard_start for o in overlaps}
        self._gradients = GradientPool(sizes, task.precision)
        self._merged: Vector | None = None  # the sum of the pushes of a merge
        self._copied: ShardSnapshot | None = None  # that another copy of the shard is filled from
        self._touched: dict[int, deque[tuple[int, list[Rows]]]] = {}  # by range, the rows of the last pushes
        self._snapshots: deque[ShardSnapshot] = deque()  # that are being written, in order
        self._collected: UnsentOfParts | None = None  # for the last of them
        self._files = StateFiles(self._checkpoints, host, run=task.run)
        self._operations: BackgroundQueue[OperationsDone] = BackgroundQueue("vectors", host.wake)

    @override
    def payload(self, send: Send) -> PayloadLike:
        span = send.payload
        if span is None:
            assert isinstance(send.forwarded, Payload)
            return send.forwarded.pieces
        if span.vector == ALL_VECTORS:
            kept = self._copied
            if kept is not None:
                return [vector[span.start : span.stop] for vector in (kept.values, *kept.state.values())]
            return [self._store.read(Span(name, span.start, span.stop)) for name in self._names]
        if isinstance(send.message, Parameters) and send.message.pushes_since is not None:
            return self._changed_rows(span, send.message.updates - send.message.pushes_since)
        if self._compensation is not None and isinstance(send.message, Parameters):
            stream = stream_name(send.to, send.message.fragment)
            self._compensation.fetched(stream, send.message.version, span)
        found = self._store.read(span)
        if found.nbytes < WORTH_SHARING:
            return found
        return Versioned(found, self._store.readings(span))

    def _changed_rows(self, span: Span, updates: int) -> PayloadLike:
        """The numbers of a range; of tables, the rows that have changed since it had so many updates."""
        values, tables = self._store.vector(POINT), clipped(self._tables, span.start, span.stop)
        last = [rows for number, rows in self._touched.get(span.start, ()) if number >= updates]
        rows = [np.unique(np.concatenate([_NO_ROWS, *(one[n] for one in last)])) for n in range(len(tables))]
        found = [
            values[table.start : table.stop].reshape(-1, table.width)[some]
            for table, some in zip(tables, rows, strict=True)
        ]
        numbers = [values[part] for part in outside(tables, span.start, span.stop)]
        return encode(numbers, list(zip(rows, found, strict=True)))

    @override
    def poll(self, now: float) -> Iterator[ShardEvent]:
        """Yields the ends of operations in the background, and of files.

        Raises:
            NotWritten: a file must not be written.
        """
        yield from self._operations.finished()
        for persisted in self._files.finished():
            self._store.release(self._snapshots.popleft())
            yield persisted
        yield from self._records.poll()

    @override
    def close(self) -> None:
        """Waits for the operation and the file that are under way."""
        self._closing.set()
        self._operations.close()
        self._files.close()
        self._records.close()

    @override
    def carry_out(self, effect: ShardEffect, now: float) -> ShardEvent | None:
        match effect:
            case Compensate():
                assert self._compensation is not None, effect
                self._compensation.correct(effect)
            case ApplyGradient():
                self._apply(effect)
            case StoreGradient(machine=machine, unit=unit, payload=payload, beside=beside):
                assert isinstance(payload, Payload)
                self._gradients.store(machine, unit, payload, beside)
            case AddGradient(machine=machine, into=into, of=of):
                self._gradients.add(machine, into, of)
            case MoveGradient(machine=machine, unit=unit, span=span):
                self._move(machine, unit, span)
            case WriteChunk():
                self._fill(effect)
            case TakeSums() | TakeCopy() | ReleaseCopy():
                return self._take(effect)
            case WriteVector(vector=vector, payload=payload):
                assert isinstance(payload, Payload)
                payload.copy_into(self._store.target(vector))
                payload.release()
            case RunOperations() | LoadCheckpoint():
                if self._numbers(effect) <= SHORT_OPERATION:
                    return self._run_operations(effect)
                self._operations.start(partial(self._run_operations, effect))
            case Persist() | KeepUnsent() | WriteFile():
                self._persist(effect)
            case Keep() | BeginSegment() | RemoveRecords():
                self._records.keep(effect)
            case DropGradients():
                self._gradients.drop()
            case ReceiveAgain(event=event):
                return event
            case Fenced(incarnation=incarnation):
                raise RuntimeError(f"another process is {self._host.name} now, of incarnation {incarnation}")
            case _:
                raise AssertionError(effect)
        return None

    def _persist(self, effect: Persist | KeepUnsent | WriteFile) -> None:
        """Takes all vectors as they are, and writes them: at once, or with what parts have kept."""
        collected = self._collected
        if isinstance(effect, KeepUnsent):
            assert collected is not None, effect
            collected.take(effect)
        elif isinstance(effect, WriteFile):
            assert collected is not None and collected.order.checkpoint == effect.checkpoint, effect
            self._files.start(collected.order, self._slots, collected.added_to(self._snapshots[-1]))
            self._collected = None
        else:
            self._snapshots.append(self._store.snapshot())
            if effect.collects:
                policy = self._task.policy
                assert isinstance(policy, ApplyPolicy) and policy.compress is not None, effect
                names = [f"{policy.unsent}{name}" for name in policy.compress.alone.state_names]
                self._collected = UnsentOfParts(effect, names, self.size, self.dtype, self._tables)
            else:
                self._files.start(effect, self._slots, self._snapshots[-1])

    def recovered(self, own: ShardRanges) -> Policy:
        """Carries out the records of the log, and begins to keep those that follow. Raises CannotGoOn."""
        return self._records.recover(own, self._base, self._carry_out_again, self._store)

    def _carry_out_again(self, effect: ShardEffect) -> OperationsDone | None:
        if isinstance(effect, RunOperations | LoadCheckpoint):
            return self._run_operations(effect)
        self.carry_out(effect, 0.0)
        return None

    def _take(self, effect: TakeSums | TakeCopy | ReleaseCopy) -> SumsTaken | CopyTaken | None:
        """Copies sums for their records, or keeps all vectors as they are until another copy has them."""
        if isinstance(effect, TakeSums):
            vectors = map(self._store.vector, effect.vectors)
            return SumsTaken(tuple(Payload([memoryview(one.tobytes())]) for one in vectors))
        if self._copied is not None:
            self._store.release(self._copied)
        self._copied = self._store.snapshot() if isinstance(effect, TakeCopy) else None
        return None if self._copied is None else CopyTaken((POINT, *self._copied.state))

    def _fill(self, effect: WriteChunk) -> None:
        """Writes a chunk of another copy. The first one may name other vectors than there are."""
        names = effect.vectors or self._names
        if effect.vectors and not effect.start:
            self._store.refill(names, lambda name, out: out.fill(0))
        if effect.payload is not None:
            assert isinstance(effect.payload, Payload)
            spans = (Span(name, effect.start, effect.stop) for name in names)
            effect.payload.copy_into(*(self._store.writable(s)[s.start : s.stop] for s in spans))

    # Vectors.

    def _prepared(self) -> Updater | None:
        """Compiles all that the policy needs."""
        optimizer = self._task.policy.optimizer
        if optimizer is None:
            compile_operations(self._store.dtype)
            return None
        learning = self._task.layout.learning_on(self._task.shard)
        fresh, averaged = self._base.run is None, self._task.layout.averaged_on(self._task.shard)
        return Updater(optimizer, self._store, fresh=fresh, learning=learning, averaged=averaged)

    def _compensating(self) -> DelayCompensation | None:
        policy, layout = self._task.policy, self._task.layout
        if not isinstance(policy, ApplyPolicy) or not isinstance(policy.staleness, Compensated):
            return None
        return DelayCompensation(policy.staleness, self._store, layout.learning_on(self._task.shard))

    @property
    def size(self) -> int:
        """The numbers of each vector."""
        return self._store.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the numbers."""
        return self._store.dtype

    @property
    def number_bytes(self) -> int:
        """The bytes of one number in all vectors."""
        return len(self._names) * self._store.dtype.itemsize

    @property
    def _names(self) -> tuple[str, ...]:
        """The vectors that another copy of the shard gets, in this order."""
        optimizer = self._task.policy.optimizer
        return (POINT, *(() if optimizer is None else optimizer.state_names))

    def _apply(self, effect: ApplyGradient) -> None:
        payload = effect.payload
        assert isinstance(payload, Payload)
        if effect.weight is not None:
            self._merge(effect, effect.weight)
        elif clipped(self._tables, effect.span.start, effect.span.stop):
            pieces = list(self.pieces(effect))
            for piece in pieces:
                self.apply_piece(piece, effect.updates, effect.scale)
            touched = self._touched.setdefault(effect.span.start, deque(maxlen=MOST_CHANGES))
            rows = [piece.rows.copy() for piece in pieces if isinstance(piece, RowPiece)]
            touched.append((effect.updates, rows))
        else:
            compensation = self._compensation
            before = None if compensation is None else compensation.before(effect)
            numbers = (piece[-1] for piece in self.pieces(effect))
            self.update(effect.span, numbers, effect.updates, effect.scale)
            if compensation is not None:
                compensation.after(effect, before)
        if not isinstance(self._task.durability, Replicated):
            payload.release()  # else it may have to be sent to the backup again

    def _merge(self, effect: ApplyGradient, weight: float) -> None:
        """Adds a push times its weight to those of its merge; the last one ends in the update."""
        if self._merged is None:
            self._merged = np.zeros(self._store.size, self._store.dtype)
        for piece in self.pieces(effect):
            assert not isinstance(piece, RowPiece), effect
            start, numbers = piece
            self._merged[start : start + numbers.size] += self._merged.dtype.type(weight) * numbers
        if not effect.more:
            whole = self._merged[effect.span.start : effect.span.stop]
            self.update(effect.span, [whole], effect.updates, 1.0)
            whole[:] = 0.0

    def pieces(self, effect: ApplyGradient) -> Iterator[Piece]:
        """Yields the numbers of a push, and rows of tables. Raises SpoiltPush before the first one."""
        payload, start, stop = effect.payload, effect.span.start, effect.span.stop
        assert isinstance(payload, Payload)
        try:
            yield from self._reader.pieces(payload, start, stop, step=effect.step)
        except ValueError as error:
            raise SpoiltPush(f"a push of {effect.stream} cannot be read: {error}") from error

    def apply_piece(self, piece: Piece, updates: int, scale: float) -> None:
        """Updates numbers, or rows of a table, by a piece of a gradient. Raises SpoiltPush."""
        if not isinstance(piece, RowPiece):
            start, numbers = piece
            self.update(Span(POINT, start, start + numbers.size), [numbers], updates, scale)
            return
        assert self._updater is not None
        try:
            self._updater.apply_rows(piece.table, piece.rows, piece.values, updates, scale)
        except NotFinite as error:
            raise SpoiltPush(str(error)) from error

    def update(self, span: Span, gradient: Iterable[Vector], updates: int, scale: float) -> None:
        """Updates numbers by pieces of a gradient, after so many earlier updates. Raises SpoiltPush."""
        assert self._updater is not None
        try:
            self._updater.apply(span, gradient, updates, scale)
        except NotFinite as error:
            raise SpoiltPush(str(error)) from error

    def _move(self, machine: int, unit: int, span: Span) -> None:
        try:
            vector = self._store.target(span.vector)
        except ValueError as error:
            raise CannotBeDone(f"an evaluation cannot be done: {error}") from error
        self._gradients.move(machine, unit, vector[span.start : span.stop])

    def _numbers(self, effect: LongEffect) -> float:
        """About how many numbers are read or written; files have no bound."""
        if isinstance(effect, LoadCheckpoint):
            return math.inf
        return sum(map(n_vectors, effect.operations)) * self._store.size

    def _run_operations(self, effect: LongEffect) -> OperationsDone:
        """Runs operations, on the host's thread or in the background."""
        if isinstance(effect, LoadCheckpoint):
            # None is what this run began with: the checkpoint that it was resumed from, if it was.
            checkpoint = effect.checkpoint
            self._loader.load(self._task.checkpoint if checkpoint is None else checkpoint)
            return OperationsDone()
        scalars: list[float] = []
        with np.errstate(all="ignore"):
            for operation in effect.operations:
                self._check_open()
                try:
                    scalars += self._store.execute_quietly(operation)
                except ValueError as error:
                    raise CannotBeDone(f"a {type(operation).__name__} cannot be done: {error}") from error
        return OperationsDone(scalars)

    def _check_open(self) -> None:
        """Ends an operation when the host ends: nobody will ask for its result."""
        if self._closing.is_set():
            raise RuntimeError(f"{self._host.name} is closed")
