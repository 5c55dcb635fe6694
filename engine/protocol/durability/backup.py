"""The backup of a shard: it carries out the shard's records behind it, and fills the shard's next process.

It confirms a record when it has it (at once, or with its next tick), and then applies it, by the same policy
and optimizer. So its numbers have the bits of the shard's. It answers no part, and so needs no lease: the
coordinator decides when a new process of the shard begins with what the backup has. From that process's first
request on, it takes nothing more from the one before.

Source: van Renesse and Schneider, "Chain replication for supporting high throughput and availability", 2004:
here with two processes, of which the first answers all, as their coordinator alone decides who is dead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from typing_extensions import override

from partita.engine.protocol import messages as m
from partita.engine.protocol.copy_messages import (
    CopyChunk,
    CopyComplete,
    CopyRequest,
    RecordKept,
    ShardCounts,
)
from partita.engine.protocol.durability.fill import Fill, Range, WriteChunk, chunk_from
from partita.engine.protocol.durability.records import Record
from partita.engine.protocol.events import Received, Refuse, Send, Tick
from partita.engine.protocol.host import PeersChanged, RoleMachine
from partita.engine.protocol.membership import DEFAULT_HEARTBEATS, HeartbeatPolicy
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.shard_effects import ApplyGradient, Policy, ShardEffect, ShardRanges

REST_S: Final = 0.01
"""Seconds for which records gather that nobody waits for: the process wakes once for several of them."""

PolicyOf: TypeAlias = Callable[[ShardCounts], Policy]
"""Makes a shard's policy with these counts."""


@dataclass(frozen=True, slots=True)
class ApplyWithin:
    """Effect: apply a gradient to these ranges of the shard's numbers alone; the others are not here yet."""

    apply: ApplyGradient
    ranges: tuple[Range, ...]


BackupEffect: TypeAlias = ShardEffect | ApplyWithin | WriteChunk


class Backup(RoleMachine):
    """The second copy of a shard.

    Attributes:
        name: of the host.
        shard: of the host that it follows.
        policy: of the shard, as far as its records are here; None before the first chunk.
        is_whole: whether it has all that the shard has promised.
    """

    def __init__(
        self,
        own: ShardRanges,
        shard: str,
        size: int,
        policy_of: PolicyOf,
        *,
        number_bytes: int,
        heartbeats: HeartbeatPolicy = DEFAULT_HEARTBEATS,
        report_s: float = 1.0,
    ) -> None:
        """Creates a backup without any numbers.

        Args:
            own: its name and incarnation, and the shard's ranges.
            shard: name of the shard's host.
            size: how many numbers the shard holds.
            policy_of: makes the shard's policy.
            number_bytes: of one number in all vectors.
            heartbeats: how often it sends a heartbeat.
            report_s: seconds between two reports that it is whole, and before a request is repeated.
        """
        self.name: Final = own.name
        self.shard: Final = shard
        self.heartbeat_s = heartbeats.heartbeat_s
        self.policy: Policy | None = None
        self.is_whole = False
        self._own: Final = own
        self._size: Final = size
        self._number_bytes: Final = number_bytes
        self._policy_of: Final = policy_of
        self._report_s: Final = report_s
        self._fill = self._new_fill()
        self._head: int | None = None  # the incarnation of the shard whose messages count
        self._follows = False  # that one has nothing that is neither here nor on its way
        self._reported_at = float("-inf")
        self.rest_s = 0.0
        self._unconfirmed = False  # records that did not ask for it

    @property
    def version(self) -> int:  # type: ignore[override]
        """The number of records that its numbers hold."""
        return 0 if self.policy is None else self.policy.version

    @override
    def receive(self, event: Any, now: float) -> list[BackupEffect]:
        """Returns the effects of an event at `now` (seconds, the host's monotonic clock), in order."""
        match event:
            case PeersChanged(peers=peers):
                return self._shard_is(peers.get(self.shard), now)
            case Tick():
                again = [] if self.is_whole or self._head is None else self._fill.tick(now)
                return [*self._confirm(), *again, *self._report(now)]
            case Received(sender=self.shard):
                return self._received(event, now)
        return []

    def _received(self, event: Received, now: float) -> list[BackupEffect]:
        message = event.message
        if self._head is None or event.incarnation < self._head:
            return []
        if isinstance(message, CopyRequest):
            return self._copy(event, message, now)
        if event.incarnation != self._head:
            return []
        match message:
            case m.RecordCopy():
                return self._record(event, message, now)
            case CopyChunk() if not self.is_whole:
                return self._chunk(event, message, now)
        return []

    # From the shard.

    def _shard_is(self, incarnation: int | None, now: float) -> list[BackupEffect]:
        """Notes the shard's process. What is not whole begins anew with it; else it will ask for a copy."""
        if incarnation is None or (self._head is not None and incarnation <= self._head):
            return []
        self._head, self._follows, self.rest_s = incarnation, False, 0.0
        if self.is_whole:
            return []
        self.policy, self._fill, self._unconfirmed = None, self._new_fill(), False
        return [self._fill.ask(now)]

    def _new_fill(self) -> Fill:
        return Fill(self.shard, self._size, number_bytes=self._number_bytes, retry_s=self._report_s)

    def _chunk(self, event: Received, chunk: CopyChunk, now: float) -> list[BackupEffect]:
        reason = self._fill.rejection_reason(chunk, event.payload)
        if reason is not None:
            return [Refuse(event.sender, reason)]
        effects: list[BackupEffect] = [*self._fill.take(chunk, event.payload, now)]
        if self.policy is None and self._fill.counts is not None:
            self.policy = self._policy_of(self._fill.counts)
        return effects + self._look(now)

    def _record(self, event: Received, message: m.RecordCopy, now: float) -> list[BackupEffect]:
        """Confirms the next record and carries it out; one that is known is confirmed again."""
        policy = self.policy
        if policy is None or message.number > policy.version + 1:
            return []  # it comes again, behind those before it
        if message.number <= policy.version:
            self._unconfirmed = True
            return self._confirm()
        request = Received(message.sender, message.incarnation, message.request, event.payload)
        reason = self._own.rejection_reason(request, "a push")
        if reason is not None:
            return [Refuse(event.sender, reason)]
        replayed = policy.replay(Record(message.number, request))
        self._unconfirmed = True
        self.rest_s = 0.0 if message.asks else REST_S
        effects: list[BackupEffect] = [*self._confirm()] if message.asks else []
        if self.is_whole:
            return effects + replayed
        ranges = self._fill.record(message.number)
        effects += (ApplyWithin(one, ranges) if isinstance(one, ApplyGradient) else one for one in replayed)
        return effects + self._look(now)

    def _confirm(self) -> list[BackupEffect]:
        if not self._unconfirmed:
            return []
        self._unconfirmed = False
        return [Send(self.shard, RecordKept(self.version))]

    def _look(self, now: float) -> list[BackupEffect]:
        if not self.is_whole and self._fill.is_whole:
            self.is_whole = self._follows = True
            return self._report(now, is_new=True)
        return []

    # To the shard's next process, and the coordinator.

    def _copy(self, event: Received, request: CopyRequest, now: float) -> list[BackupEffect]:
        """Sends numbers to a process of the shard that begins with them."""
        begins = not (self._follows and event.incarnation == self._head)
        if not self.is_whole or self.policy is None or (request.start < self._size and not begins):
            return []
        self._head = event.incarnation
        answer = chunk_from(self.shard, request, self._size, self.version, self.policy.counts())
        self._follows = request.start >= self._size
        return [answer, *(self._report(now, is_new=begins))]

    def _report(self, now: float, *, is_new: bool = False) -> list[BackupEffect]:
        """Reports to the coordinator that shard and backup have the same, again and again."""
        is_due = is_new or now - self._reported_at >= self._report_s
        if not self._follows or self._head is None or not is_due:
            return []
        self._reported_at = now
        return [Send(COORDINATOR, CopyComplete(self._head))]

    @override
    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        self._fill.validate()
        assert not self.is_whole or self.policy is not None
        assert not self._follows or self.is_whole
        if self.policy is not None:
            self.policy.validate()
            assert self.is_whole or self._fill.number == self.policy.version, (
                self._fill.number,
                self.version,
            )
