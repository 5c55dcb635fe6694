"""A shard: its task, and the body of its machine over a store of named vectors, files, and threads."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from typing_extensions import override

from partita.engine.files.background import BackgroundQueue
from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.formats import CheckpointError
from partita.engine.parameters.layout import Layout, gather
from partita.engine.parameters.log import sync_segments
from partita.engine.parameters.snapshot import NotFinite, ShardSnapshot
from partita.engine.parameters.storage import Updater
from partita.engine.parameters.vector import Vector
from partita.engine.parameters.vectors import WORTH_SHARING, VectorStore, compile_operations
from partita.engine.protocol.apply_on_arrival import RestoredState
from partita.engine.protocol.commands import POINT, n_vectors
from partita.engine.protocol.durability import BeginSegment, Keep, LogNote, RemoveRecords
from partita.engine.protocol.durability.fill import ALL_VECTORS, Fill, WriteChunk
from partita.engine.protocol.durability.replicated import ReplicatedShard
from partita.engine.protocol.durability.settings import CHECKPOINT_ONLY, Durability, Log, Replicated
from partita.engine.protocol.durability.snapshots import SnapshotShard
from partita.engine.protocol.events import Persist, Send, Span
from partita.engine.protocol.membership import DEFAULT_HEARTBEATS, HeartbeatPolicy
from partita.engine.protocol.names import backup_name
from partita.engine.protocol.shard import Shard
from partita.engine.protocol.shard_effects import (
    AddGradient,
    ApplyGradient,
    CopyTaken,
    DropGradients,
    Fenced,
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
    WriteVector,
)
from partita.engine.runtime.gradient_pool import GradientPool
from partita.engine.runtime.shard_log import ShardLog
from partita.engine.runtime.shard_policies import ShardPolicy
from partita.engine.runtime.shard_recovery import Base, LogPlace, Recovery, goes_on, header_of
from partita.engine.runtime.state_files import StateFiles
from partita.engine.runtime.task import Body, CannotGoOn, HostContext
from partita.engine.transport.payload import Payload, PayloadLike, Versioned
from partita.layers.text import counted

LEAST_LOG_BYTES: Final = 1 << 30
MOST_PUSHES: Final = 16
"""A log asks for a checkpoint beyond so many bytes, and so many pushes to all parameters."""

SPARE_BYTES: Final = 1 << 16
"""Room for small files that a log leaves on the disk, beside that for a checkpoint of all shards."""

SHORT_OPERATION: Final = 1 << 23
"""Operations on so many numbers are done on the host's thread: about 10 ms, of which a thread and its waking
would cost some percent. Longer ones are done in the background, while the host answers.
"""


class SpoiltPush(CannotGoOn):
    """A push that is not finite: the shard's values are lost, and its last checkpoint is what is left."""


class CannotBeDone(CannotGoOn):
    """A command that no shard can carry out; the method is at fault."""


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """One shard of a run's vectors.

    Args:
        shard: the shard's index.
        layout: where every parameter is.
        run: the run's id.
        folder: of the checkpoints.
        checkpoint: the one to start from; None starts from `initial`.
        initial: a safetensors file of whole parameters.
        precision: of all numbers, "float32" or "float64".
        policy: what happens to gradients.
        keeps_units: the units of work that the checkpoint's file names are those of this run.
        heartbeats: the coordinator's policy.
        durability: who keeps its records.
        logs: where its logs are, and those of the runs that this one goes on from; None: there are none.
        units_per_epoch: how the work is cut that pushes name.
        from_backup: starts from what its backup has, and from no file.
    """

    shard: int
    layout: Layout
    run: str
    folder: Path
    checkpoint: int | None
    initial: Path
    precision: str
    policy: ShardPolicy
    keeps_units: bool = True
    heartbeats: HeartbeatPolicy = DEFAULT_HEARTBEATS
    durability: Durability = CHECKPOINT_ONLY
    logs: LogPlace | None = None
    units_per_epoch: int = 0
    from_backup: bool = False

    @property
    def threads(self) -> int:
        """See the protocol `HostTask`."""
        return 1

    @property
    def rank(self) -> tuple[int, int]:
        """See the protocol `HostTask`."""
        return 0, 1

    def role(self, host: HostContext) -> tuple[Shard, ShardBody]:
        """See the protocol `HostTask`."""
        body = ShardBody(self, host, is_empty=self.from_backup)
        own = self.ranges(host)
        policy = body.recovered(own)
        if isinstance(self.durability, Replicated):
            return self._replicated(own, policy, body), body
        return Shard(own, policy, heartbeats=self.heartbeats, keeps=self.durability.keeps), body

    def ranges(self, host: HostContext) -> ShardRanges:
        """Returns the numbers that the shard holds of each machine, for this host."""
        ranges = {o.machine: (o.shard_start, o.shard_stop) for o in self.layout.machines_of(self.shard)}
        return ShardRanges(host.name, host.incarnation, ranges, np.dtype(self.precision).itemsize)

    def _replicated(self, own: ShardRanges, policy: Policy, body: ShardBody) -> Shard:
        backup, size = backup_name(self.shard), body.size
        kind = ReplicatedShard if self.policy.optimizer is not None else SnapshotShard
        return kind(
            own,
            policy,
            backup,
            size=size,
            fill=Fill(backup, size, number_bytes=body.number_bytes) if self.from_backup else None,
            policy_of=lambda counts: self.policy.copied(own, counts),
            heartbeats=self.heartbeats,
        )


class ShardBody(Body):
    """A slice of every vector, and gradients for the machines whose parameters these are."""

    def __init__(self, task: ShardTask, host: HostContext, *, is_empty: bool = False) -> None:
        """Loads the numbers, unless another copy of the shard sends all of them (`is_empty`)."""
        self._task, self._host = task, host
        self._slots = task.layout.slots_of(task.shard)
        self._checkpoints = host.files.checkpoints(task.folder, run=task.run)
        self._closing = threading.Event()
        size = sum(slot.size for slot in self._slots)
        self._store = VectorStore(np.zeros(size, task.precision), memory=host.memory)
        self._is_empty = is_empty
        empty = Base(None, RestoredState(), self._store.target(POINT))
        self._log: ShardLog | None = None
        self._notes: list[str] = []  # about the log, for the user
        self._base = empty if is_empty else self._loaded()
        self._updater = self._prepared()
        overlaps = task.layout.machines_of(task.shard)
        sizes = {o.machine: o.shard_stop - o.shard_start for o in overlaps}
        self._gradients = GradientPool(sizes, task.precision)
        self._copied: ShardSnapshot | None = None  # that another copy of the shard is filled from
        self._snapshots: deque[ShardSnapshot] = deque()  # that are being written, in order
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
        found = self._store.read(span)
        if found.nbytes < WORTH_SHARING:
            return found
        return Versioned(found, self._store.readings(span))

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
        if self._notes or self._log is not None:
            yield from self._poll_log()

    @override
    def close(self) -> None:
        """Waits for the operation and the file that are under way."""
        self._closing.set()
        self._operations.close()
        self._files.close()
        if self._log is not None:
            self._log.close()

    @override
    def carry_out(self, effect: ShardEffect, now: float) -> ShardEvent | None:
        match effect:
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
            case Persist():
                self._snapshots.append(self._store.snapshot())
                self._files.start(effect, self._slots, self._snapshots[-1])
            case Keep() | BeginSegment() | RemoveRecords():
                self._keep(effect)
            case DropGradients():
                self._gradients.drop()
            case ReceiveAgain(event=event):
                return event
            case Fenced(incarnation=incarnation):
                raise RuntimeError(f"another process is {self._host.name} now, of incarnation {incarnation}")
            case _:
                raise AssertionError(effect)
        return None

    # Records.

    def recovered(self, own: ShardRanges) -> Policy:
        """Carries out the records of the log, and begins to keep those that follow.

        Raises:
            CannotGoOn: the log cannot be used, or none can be written here.
        """
        task, base = self._task, self._base
        if task.logs is None or task.from_backup:
            # Each run counts from 0 again.
            state = base.state if base.run == task.run else base.state.in_another_run(version=0)
            return task.policy.machine(own, state)
        folder = self._host.files.log_folder(task.folder)
        if folder is None:
            raise CannotGoOn(
                f"{own.name} cannot keep a log on its machine, which has no folder of the run; give the "
                "checkpoints as SharedFolder(...), or train with durability='checkpoint'"
            )
        header = header_of(
            own,
            run=task.run,
            shards=task.layout.shards,
            precision=task.precision,
            units_per_epoch=task.units_per_epoch,
        )
        recovery = Recovery(folder, task.logs, base, header)
        state = recovery.before(lambda state: task.policy.replaying(own, state), self._carry_out_again)
        policy = task.policy.machine(
            own, state, lambda policy: recovery.replay(recovery.own, policy, self._carry_out_again)
        )
        self._notes += recovery.notes
        if recovery.replayed:
            what = ("record", "records") if task.policy.optimizer is None else ("push", "pushes")
            self._notes.append(f"{counted(recovery.replayed, *what)} of its log carried out again")
        if isinstance(task.durability, Log):
            if folder != task.folder:
                self._notes.append(
                    f"its log is on its own machine, in {folder}; it is lost where the shard has to begin on "
                    "another one, and when the run ends"
                )
            synced = task.durability.sync == "disk"
            if synced:
                sync_segments(recovery.content.segments)
            file_bytes = len(self._store.names()) * self._store.size * own.item_bytes
            reserve = int(1.1 * task.layout.shards * file_bytes) + SPARE_BYTES
            writer = recovery.writer(folder / task.logs.name, policy.version, synced=synced, reserve=reserve)
            most = max(LEAST_LOG_BYTES, MOST_PUSHES * self._store.size * own.item_bytes)
            self._log = ShardLog(
                writer, task.durability, most_bytes=task.durability.most_bytes or most, wake=self._host.wake
            )
        return policy

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

    def _keep(self, effect: Keep | BeginSegment | RemoveRecords) -> None:
        if self._log is None:
            return
        match effect:
            case Keep(record=record):
                self._log.keep(record)
            case BeginSegment(first=first):
                self._log.begin_segment(first)
            case RemoveRecords(through=through):
                self._log.remove(through)

    def _poll_log(self) -> Iterator[ShardEvent]:
        notes, self._notes = self._notes, []
        yield from (LogNote(text) for text in notes)
        if self._log is not None:
            yield from self._log.poll()

    # Vectors.

    def _loaded(self) -> Base:
        """Loads the checkpoint; where that is damaged, the newest older one to which the log goes back.

        Raises:
            CheckpointError: it is damaged, and the log does not go back.
        """
        task, files = self._task, self._checkpoints
        try:
            return self._load(task.checkpoint)
        except CheckpointError as error:
            if task.logs is None or task.checkpoint is None or not isinstance(files, Checkpoints):
                raise
            for older in (*(number for number in files.complete() if number < task.checkpoint), None):
                with suppress(CheckpointError):
                    base = self._load(older)
                    if goes_on(task.folder, task.logs, self._host.name, base.state.version):
                        begins = "the start" if older is None else f"checkpoint {older}"
                        self._notes.append(f"{error}; it begins from {begins} and its log")
                        return base
            raise

    def _load(self, checkpoint: int | None) -> Base:
        """Loads all vectors from a checkpoint, or the first point."""
        task = self._task
        if checkpoint is None:
            held = {slot.parameter for slot in self._slots}
            whole = self._host.files.parameters(task.initial, dict(task.layout.shapes), only=held)
            self._store.refill((POINT,), lambda _, out: gather(self._slots, whole, out=out))
            return Base(None, RestoredState(), self._store.target(POINT))
        found = self._checkpoints.open(checkpoint, dict(task.layout.shapes), slots=self._slots)

        def fill(name: str, out: Vector) -> None:
            kind = "values" if name == POINT else f"state.{name}"
            found.gather(self._slots, kind, out=out)
            self._check_open()

        self._store.refill((POINT, *found.state_names), fill)
        name = self._host.name
        record = found.records.get(name)
        run = found.manifest.run if record is None else record.run
        state = RestoredState(
            version=0 if record is None else record.version,
            updates=found.updates(self._slots),
            seen=found.seen(name, run),
            stops=found.stops(name, run),
            updates_of=found.updates_of(name, run),
            units=found.units(name) if task.keeps_units else {},
        )
        return Base(run, state, self._store.target(POINT))

    def _prepared(self) -> Updater | None:
        """Compiles all that the policy needs."""
        optimizer = self._task.policy.optimizer
        if optimizer is None:
            compile_operations(self._store.dtype)
            return None
        learning = self._task.layout.learning_on(self._task.shard)
        fresh, averaged = self._base.run is None, self._task.layout.averaged_on(self._task.shard)
        return Updater(optimizer, self._store, fresh=fresh, learning=learning, averaged=averaged)

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
        self.update(effect.span, payload.numbers(self._store.dtype), effect.updates)
        if not isinstance(self._task.durability, Replicated):
            payload.release()  # else it may have to be sent to the backup again

    def update(self, span: Span, gradient: Iterable[Vector], updates: int) -> None:
        """Updates numbers by pieces of a gradient, after so many earlier updates. Raises SpoiltPush."""
        assert self._updater is not None
        try:
            self._updater.apply(span, gradient, updates)
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
            self._load(self._task.checkpoint if checkpoint is None else checkpoint)
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
