"""Failure detection: any message is a sign of life; a silent host is first suspected, then declared dead.

The decision may be wrong (a stopped process, a split network). An error costs time, never correctness,
because a host that was declared dead is replaced by one of a newer incarnation, and works under a lease that
has run out by then (`lease.py`). Only the coordinator decides. This module must not know what a host does.

The coordinator's heartbeat returns a host's own newest clock reading. A lease counts from that reading, and
death from when it *arrived*, which is later: so `dead_s` beyond the lease is enough however long messages lie
in queues, and even if only one direction of the network works.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import KeysView
from dataclasses import dataclass
from typing import Final, TypeAlias

from partita.engine.protocol.events import Died, Received, Send, Tick
from partita.engine.protocol.messages import Heartbeat

LEASE: Final = 0.75
"""Duration of a lease, as a part of the time after which a silent host is dead."""


@dataclass(frozen=True, slots=True)
class HeartbeatPolicy:
    """The interval of heartbeats, and the limits of silence (seconds). Source: our reliability notes.

    A shard's lease follows from these: it ends before the shard is declared dead. The rest of `dead_s`
    covers the time between a check of the lease and the action.
    """

    heartbeat_s: float = 0.5
    suspect_s: float = 2.0
    dead_s: float = 4.0

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_s < self.suspect_s < self.dead_s:
            raise ValueError(
                f"{self}: a host is alive, then suspected, then dead; "
                "choose 0 < heartbeat_s < suspect_s < dead_s"
            )
        if 2 * self.heartbeat_s > self.lease_s:
            raise ValueError(
                f"{self}: a lease lasts {self.lease_s:g} s, {LEASE:.0%} of dead_s, and is renewed by "
                "heartbeats, of which one may be lost; choose a heartbeat_s of at most half of that, or a "
                "larger dead_s"
            )

    @property
    def lease_s(self) -> float:
        """Duration of a lease, from the clock reading with which it was asked for."""
        return LEASE * self.dead_s


DEFAULT_HEARTBEATS: Final = HeartbeatPolicy()
"""The policy of a run without settings of its own."""


@dataclass(frozen=True, slots=True)
class Suspected:
    """Effect: this host has been silent for `suspect_s`. Nothing follows yet."""

    name: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class Recovered:
    """Effect: a suspected host has sent a message."""

    name: str
    silent_s: float


MembershipEvent: TypeAlias = Received | Tick
MembershipEffect: TypeAlias = Send | Suspected | Recovered | Died


@dataclass(slots=True, eq=False)
class _Member:
    name: str
    incarnation: int
    received_at: float
    look_at: float = 0.0  # when its silence is looked at; other entries of the heap are old
    clock: float | None = None
    suspected: bool = False
    leased: bool = True
    watched: bool = True


class Membership:
    """The hosts that are expected to send messages.

    A host is `watch`ed from when it is ready: before that the host may compile for long, within a deadline of
    the coordinator. `Died` is both the decision made here and a supervisor's report of a process that has
    ended; either way the coordinator `forget`s the host.

    A message costs the same however many hosts there are, and a tick looks only at those that are due.
    """

    def __init__(self, heartbeats: HeartbeatPolicy | None = None) -> None:
        self.heartbeats = heartbeats or DEFAULT_HEARTBEATS
        self._members: dict[str, _Member] = {}
        self._beats: deque[tuple[float, _Member]] = deque()  # when the next heartbeat is due, ascending
        self._looks: list[tuple[float, int, _Member]] = []  # a heap
        self._counter = itertools.count()
        self._last_tick: float | None = None

    def watch(self, name: str, incarnation: int, now: float) -> None:
        """Expects messages of this incarnation from now on, and sends it heartbeats."""
        self.forget(name)
        self._members[name] = member = _Member(name, incarnation, now)
        self._beats.appendleft((float("-inf"), member))  # the first one with the next tick
        self._look_later(member)

    def forget(self, name: str) -> None:
        """Expects no messages of this host any more."""
        member = self._members.pop(name, None)
        if member is not None:
            member.watched = False

    def revoke(self, name: str) -> None:
        """Stops renewing this host's lease: `lease_s` from now the host may have no effect any more."""
        self._members[name].leased = False

    @property
    def watched(self) -> KeysView[str]:
        """The watched hosts, in the order in which they were first watched."""
        return self._members.keys()

    def receive(self, event: MembershipEvent, now: float) -> list[MembershipEffect]:
        """Returns the effects of an event at `now` (seconds, monotonic)."""
        if isinstance(event, Tick):
            return self._tick(now)
        return self._received(event, now)

    def _received(self, event: Received, now: float) -> list[MembershipEffect]:
        member = self._members.get(event.sender)
        if member is None or event.incarnation != member.incarnation:
            return []
        silent_s, member.received_at = now - member.received_at, now
        effects: list[MembershipEffect] = []
        if isinstance(event.message, Heartbeat) and event.message.clock is not None:
            first = member.clock is None
            # Heartbeats may overtake one another: an older reading would only shorten the lease.
            clock = event.message.clock
            member.clock = clock if member.clock is None else max(clock, member.clock)
            if first and member.leased:  # a shard cannot work before its first lease, so it comes at once
                effects.append(Send(event.sender, Heartbeat(member.incarnation, clock=member.clock)))
        if member.suspected:
            member.suspected = False
            self._look_later(member)
            effects.append(Recovered(event.sender, silent_s))
        return effects

    def _look_later(self, member: _Member) -> None:
        """Looks at a member's silence when it would next be suspected or dead."""
        limit_s = self.heartbeats.dead_s if member.suspected else self.heartbeats.suspect_s
        member.look_at = member.received_at + limit_s
        heapq.heappush(self._looks, (member.look_at, next(self._counter), member))

    def _tick(self, now: float) -> list[MembershipEffect]:
        self._leave_out_own_pause(now)
        effects: list[MembershipEffect] = []
        while self._looks and self._looks[0][0] <= now:
            at, _, member = heapq.heappop(self._looks)
            if member.watched and at == member.look_at:
                effects += self._look(member, now)
        while self._beats and self._beats[0][0] <= now:
            _, member = self._beats.popleft()
            if member.watched:
                clock = member.clock if member.leased else None
                effects.append(Send(member.name, Heartbeat(member.incarnation, clock=clock)))
                self._beats.append((now + self.heartbeats.heartbeat_s, member))
        return effects

    def _look(self, member: _Member, now: float) -> list[MembershipEffect]:
        silent_s, policy = now - member.received_at, self.heartbeats
        if now >= member.received_at + policy.dead_s:
            self.forget(member.name)
            return [Died(member.name, member.incarnation, f"silent for {silent_s:.1f} s")]
        newly = not member.suspected and now >= member.received_at + policy.suspect_s
        member.suspected = member.suspected or newly
        self._look_later(member)
        return [Suspected(member.name, silent_s)] if newly else []

    def _leave_out_own_pause(self, now: float) -> None:
        """Leaves out a pause of the coordinator itself, in which it received nothing.

        A later decision is always safe, and messages in the inbox are read before the next tick.
        """
        pause = now - self._last_tick if self._last_tick is not None else 0.0
        self._last_tick = now
        if pause > self.heartbeats.suspect_s / 2:
            for member in self._members.values():
                member.received_at = min(now, member.received_at + pause)

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        looks = {id(member) for at, _, member in self._looks if at == member.look_at and member.watched}
        beats = {id(member) for _, member in self._beats if member.watched}
        assert looks == beats == {id(member) for member in self._members.values()}
        for name, member in self._members.items():
            assert member.incarnation >= 0 and member.watched, name
            assert self._last_tick is None or not member.suspected or member.received_at <= self._last_tick, (
                name
            )
