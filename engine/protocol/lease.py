"""The base of every shard: the lease under which it works, its ranges, and its checkpoint files.

A shard works only under a lease: the coordinator has returned, for this incarnation, a clock reading of this
shard that is younger than `lease_s`. The coordinator declares a silent shard dead only later than `lease_s`
after its last message. So two processes are never the same shard at the same time, however late a message
or a stopped process comes back. This module must not know what a shard holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from partita.engine.protocol import messages as m
from partita.engine.protocol.events import (
    NotPersisted,
    Persisted,
    Received,
    Refuse,
    Send,
    Tick,
    payload_bytes,
)
from partita.engine.protocol.membership import DEFAULT_HEARTBEATS, HeartbeatPolicy
from partita.engine.protocol.names import COORDINATOR, machine_of

_NEEDS_LEASE: Final = (
    m.CommandResult,
    m.ContributionAck,
    m.MissingUnits,
    m.Parameters,
    m.Point,
    m.PushAck,
    m.Saved,
)


@dataclass(frozen=True, slots=True)
class Fenced:
    """Effect, once: a process of this incarnation has replaced the shard. The host must end."""

    incarnation: int


class LeasedShard:
    """A shard that renews its lease in time, stops when it is replaced, and reports its files."""

    def __init__(
        self,
        name: str,
        *,
        incarnation: int,
        ranges: Mapping[int, tuple[int, int]],
        item_bytes: int = 4,
        heartbeats: HeartbeatPolicy = DEFAULT_HEARTBEATS,
    ) -> None:
        """Creates a shard without a lease.

        Args:
            name: "shard K".
            incarnation: of this process.
            ranges: for each machine, its `(start, stop)` in the shard's own flat vectors.
            item_bytes: bytes of one number of a payload.
            heartbeats: how often it asks for a lease, and how long one lasts.
        """
        self.name: Final = name
        self.incarnation: Final = incarnation
        self.fenced = False
        self._ranges: Final = dict(ranges)
        self._item_bytes: Final = item_bytes
        self._heartbeats: Final = heartbeats
        self._leased_until = float("-inf")
        self._next_heartbeat = float("-inf")
        self._writing: Final[deque[m.Saved]] = deque()  # reports of files under way, without names and hashes
        self._saved: m.Saved | None = None
        self._save_failed: m.SaveFailed | None = None

    def holds_lease(self, now: float) -> bool:
        """Returns whether it may apply and acknowledge at `now` (seconds, its own monotonic clock)."""
        return not self.fenced and now < self._leased_until

    def may_send(self, message: m.Message, now: float) -> bool:
        """Returns whether a message may leave at `now` (seconds, its own monotonic clock).

        The interpreter asks before each `Send`: an earlier effect takes a while, and the process may be
        stopped in it. A message that was not sent is repeated on request.
        """
        return not isinstance(message, _NEEDS_LEASE) or self.holds_lease(now)

    def validate(self) -> None:
        """Checks invariant I4 as far as one shard can see it. Raises AssertionError."""
        assert not (self.fenced and self.holds_lease(float("-inf")))

    def _other(self, event: Received | Tick, now: float) -> list[Send | Fenced | Refuse]:
        """Handles the messages and the passing of time that all shards have in common."""
        if isinstance(event, Tick):
            return [*self._tick(now)]
        if event.sender == COORDINATOR and isinstance(event.message, m.Heartbeat):
            return [*self._heartbeat(event.message, now)]
        kind = type(event.message).__name__
        return [Refuse(event.sender, f"{self.name} does not take a {kind} from it")]

    def _tick(self, now: float) -> list[Send]:
        if self.fenced or now < self._next_heartbeat:
            return []
        self._next_heartbeat = now + self._heartbeats.heartbeat_s
        return [Send(COORDINATOR, m.Heartbeat(self.incarnation, clock=now))]

    def _heartbeat(self, message: m.Heartbeat, now: float) -> list[Fenced]:
        if self.fenced or message.incarnation < self.incarnation:
            return []
        if message.incarnation > self.incarnation:
            self.fenced = True
            return [Fenced(message.incarnation)]
        if message.clock is not None and message.clock <= now:
            self._leased_until = max(self._leased_until, message.clock + self._heartbeats.lease_s)
        return []

    def _rejection_reason(self, event: Received, gradient: str = "") -> str | None:
        """Returns why a message is malformed. `gradient` names an expected payload."""
        machine = machine_of(event.sender)
        if machine not in self._ranges:
            return f"{self.name} holds no parameters of {event.sender!r}"
        start, stop = self._ranges[machine]
        expected, found = (stop - start) * self._item_bytes, payload_bytes(event.payload)
        if gradient and found != expected:
            return f"{gradient} of {event.sender!r} to {self.name} has {expected} bytes, not {found}"
        return None

    def _report_file(self, event: Persisted | NotPersisted) -> list[Send]:
        """Reports the oldest file under way, unless the shard was replaced."""
        writing = self._writing.popleft() if self._writing else None
        expected = None if writing is None else (writing.checkpoint, writing.version)
        assert (event.checkpoint, event.version) == expected, f"{event} while writing {writing}"
        if self.fenced or writing is None:
            return []
        if isinstance(event, NotPersisted):
            self._save_failed = m.SaveFailed(event.checkpoint, self.incarnation, event.reason)
            return [Send(COORDINATOR, self._save_failed)]
        self._saved = msgspec.structs.replace(writing, file=event.file, sha256=event.sha256)
        return [Send(COORDINATOR, self._saved)]
