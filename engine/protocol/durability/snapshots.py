"""Shards that execute commands, and their backups: copies are of one moment, and records follow whole copies.

Names of vectors change with the commands, and so does their number. So a copy is not of each chunk's own
version: its source keeps all vectors as they were at the first chunk, while its commands go on. The side that
is filled keeps the records that come meanwhile, and carries them out when it has everything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from typing_extensions import override

from partita.engine.protocol import messages as m
from partita.engine.protocol.copy_messages import CopyChunk, CopyRequest, RecordKept, ShardCounts
from partita.engine.protocol.durability.backup import REST_S, Backup, BackupEffect
from partita.engine.protocol.durability.fill import ALL_VECTORS, CHUNK
from partita.engine.protocol.durability.records import Record
from partita.engine.protocol.durability.replicated import ReplicatedShard
from partita.engine.protocol.events import Received, Refuse, Send, Span
from partita.engine.protocol.shard_effects import (
    CopyTaken,
    OperationsDone,
    ReleaseCopy,
    ShardEffect,
    ShardEvent,
    TakeCopy,
)
from partita.engine.protocol.sum_then_continue import SumThenContinue, without_replies

PolicyOf: TypeAlias = Callable[[ShardCounts], SumThenContinue]
"""Makes a shard's policy with these counts."""


class Snapshot:
    """The vectors of one moment, which another host is sent chunk by chunk.

    Attributes:
        reader: the incarnation that they are kept for, or were; None before the first.
        chunk: numbers of all vectors together in a chunk.
    """

    def __init__(self, to: str, size: int) -> None:
        """Nothing is kept yet.

        Args:
            to: the host that asks.
            size: how many numbers each vector has.
        """
        self._to: Final = to
        self._size: Final = size
        self.reader: int | None = None
        self.chunk = CHUNK
        self._counts: ShardCounts | None = None

    def take(self, reader: int, counts: ShardCounts) -> TakeCopy:
        """Begins a copy of the vectors as they are now, with these counts. Each reader gets one."""
        self.reader, self._counts = reader, counts
        return TakeCopy()

    def taken(self, vectors: tuple[str, ...]) -> list[Send]:
        """Sends the first chunk, which names the vectors."""
        assert self._counts is not None and self._counts.command is not None
        command = msgspec.structs.replace(self._counts.command, vectors=vectors)
        self._counts = msgspec.structs.replace(self._counts, command=command)
        return [self._chunk(0)]

    def answer(self, start: int) -> list[Send | ReleaseCopy]:
        """Sends the chunk from this number on; the last request confirms that the other side has all."""
        if self._counts is None or self._counts.command is None or not self._counts.command.vectors:
            return []
        chunk = self._chunk(min(start, self._size))
        return [chunk] if start < self._size else [chunk, *self.release()]

    def release(self) -> list[ReleaseCopy]:
        """Keeps the vectors no more."""
        kept, self._counts = self._counts, None
        return [] if kept is None else [ReleaseCopy()]

    def _chunk(self, start: int) -> Send:
        counts = self._counts
        assert counts is not None and counts.command is not None
        stop = min(start + max(1, self.chunk // len(counts.command.vectors)), self._size)
        span = Span(ALL_VECTORS, start, stop) if stop > start else None
        return Send(self._to, CopyChunk(start, stop, counts.version, None if start else counts), span)


class SnapshotShard(ReplicatedShard):
    """A shard that executes commands, and has a backup, or waits for one."""

    policy: SumThenContinue

    def __init__(self, *args: Any, **named: Any) -> None:
        """Creates a shard without a lease, see `ReplicatedShard`."""
        super().__init__(*args, **named)
        self.snapshot: Final = Snapshot(self._chain.backup, self._size)
        self._asked: int | None = None  # the backup that waits for a copy

    @override
    def receive(self, event: ShardEvent, now: float) -> list[ShardEffect]:
        if isinstance(event, CopyTaken):
            return [*self.snapshot.taken(event.vectors)]
        effects = super().receive(event, now)
        released = self.snapshot.release() if self._chain.follower is None else []
        return [*effects, *released, *self._take()]

    @override
    def _copy(self, event: Received, request: CopyRequest) -> list[ShardEffect]:
        if event.incarnation == self.snapshot.reader:
            return [*self.snapshot.answer(request.start)]
        if not request.start:
            self._asked = event.incarnation
        return []

    def _take(self) -> list[ShardEffect]:
        """Begins the copy that was asked for, once nothing changes the vectors."""
        if self._asked is None or not self.policy.may_be_copied:
            return []
        asked, self._asked = self._asked, None
        follows = self._chain.begin(asked, self.version)
        return [self.snapshot.take(asked, self.policy.counts())] if follows else []


class SnapshotBackup(Backup):
    """The second copy of a shard that executes commands. It keeps records that it cannot carry out yet."""

    policy: SumThenContinue | None

    def __init__(self, *args: Any, **named: Any) -> None:
        """Creates a backup without any numbers, see `Backup`."""
        super().__init__(*args, **named)
        self.snapshot: Final = Snapshot(self.shard, self._size)
        self._waiting: Final[deque[Record]] = deque()
        self._newest = 0  # number of the last record that is here
        self._is_asked = False  # the shard's next process waits for a copy

    @override
    def receive(self, event: Any, now: float) -> list[BackupEffect]:
        match event:
            case CopyTaken(vectors=vectors):
                return [*self.snapshot.taken(vectors)]
            case OperationsDone(scalars=scalars):
                assert self.policy is not None
                effects: Sequence[BackupEffect] = without_replies(
                    self.policy.operations_done(scalars, leased=True)
                )
            case _:
                effects = super().receive(event, now)
        return [*effects, *self._carry_out(), *self._take()]

    @override
    def _shard_is(self, incarnation: int | None, now: float) -> list[BackupEffect]:
        fill, effects = self._fill, super()._shard_is(incarnation, now)
        if self._fill is not fill:
            self._waiting.clear()
            self._newest = 0
        return effects

    @override
    def _chunk(self, event: Received, chunk: CopyChunk, now: float) -> list[BackupEffect]:
        effects = super()._chunk(event, chunk, now)
        self._newest = max(self._newest, self.version)
        return effects

    # Records.

    @override
    def _record(self, event: Received, message: m.RecordCopy, now: float) -> list[BackupEffect]:
        if self.policy is None or message.number > self._newest + 1:
            return []  # it comes again, behind those before it
        if message.number == self._newest + 1:
            request = Received(message.sender, message.incarnation, message.request, event.payload)
            self._waiting.append(Record(message.number, request))
            self._newest = message.number
            self.rest_s = 0.0 if message.asks else REST_S
        self._unconfirmed = True
        return [*self._confirm()] if message.asks or message.number < self._newest else []

    @override
    def _confirm(self) -> list[BackupEffect]:
        confirms, self._unconfirmed = self._unconfirmed, False
        return [Send(self.shard, RecordKept(self._newest))] if confirms else []

    def _carry_out(self) -> list[BackupEffect]:
        """Carries out the records that are here, up to one whose operations have to end first."""
        effects: list[BackupEffect] = []
        policy = self.policy
        while self.is_whole and policy is not None and self._waiting and not policy.busy:
            record = self._waiting.popleft()
            reason = policy.record_reason(record)
            if reason is not None:  # of a shard that breaks the protocol: what was before it stays
                self._waiting.clear()
                self._newest = policy.version
                return [*effects, Refuse(self.shard, reason)]
            effects += policy.replay(record)
        return effects

    # To the shard's next process.

    @override
    def _copy(self, event: Received, request: CopyRequest, now: float) -> list[BackupEffect]:
        begins = not (self._follows and event.incarnation == self._head)
        if not self.is_whole or (request.start < self._size and not begins):
            return []
        self._head = event.incarnation
        is_known = event.incarnation == self.snapshot.reader
        self._is_asked = not is_known and not request.start
        self._follows = request.start >= self._size
        answer = self.snapshot.answer(request.start) if is_known else []
        return [*answer, *self._report(now, is_new=begins)]

    def _take(self) -> list[BackupEffect]:
        """Begins the copy that was asked for, once all records are carried out: until then they run."""
        policy = self.policy
        if not self._is_asked or policy is None or not policy.may_be_copied:
            return []
        self._is_asked = False
        assert self._head is not None
        return [self.snapshot.take(self._head, policy.counts())]

    @override
    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        super().validate()
        numbers = [record.number for record in self._waiting]
        assert numbers == [*range(self._newest + 1 - len(numbers), self._newest + 1)], numbers
        if self.policy is not None and numbers:
            assert numbers[0] == self.policy.version + 1, (numbers, self.policy.version)
