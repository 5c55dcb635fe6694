"""Watches the hosts of a run: asks each about once a second how it is, and which steps to record.

The answers are effects for the interpreter, with the offset of each host's clock. Nothing that is decided
elsewhere depends on them, and an answer that is lost is not asked for again: the next question follows
anyway. A host that is asked pays for the answer, so it says what recording a step has cost it, and steps are
recorded so rarely that all of this stays below a share of its time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from partita.engine.protocol.clocks import Offset, RoundTrip, offset_of
from partita.engine.protocol.coordinator_effects import HostObserved, WatchPolicy
from partita.engine.protocol.events import Send
from partita.engine.protocol.host_registry import HostRecord, HostState
from partita.engine.protocol.watch_messages import HostReport, Watch

ROUNDS_S: Final = 20.0
"""Seconds for which a round trip says something of a clock; two may drift apart by 20 us in a second."""

SHARE: Final = 1 / 400
"""Largest share of a machine's time that recording steps may take, summed over the hosts that run on it."""

_SLOWER: Final = 0.7
"""Share of its pace that a replica is expected to keep from one answer to the next: one that pauses will go
on as fast as before."""

_EARLY: Final = 0.25
"""Share of the intervals until the pace of a replica is known, and of those of its first recorded steps."""

_MOST_EVERY: Final = 1 << 40


@dataclass(slots=True)
class _Watched:
    """A process that is watched."""

    incarnation: int
    asked_at: float = -math.inf
    rounds: deque[tuple[float, RoundTrip]] = field(default_factory=deque)
    steps: tuple[float, int] | None = None  # at the last answer, from the first step on
    rate: float | None = None  # steps in a second
    cost_s: float = 0.0  # of the last step that was recorded
    clock: str = ""  # hosts with the same one run on one machine


class Watching:
    """The questions that are due, and what is known of the answers."""

    def __init__(self, policy: WatchPolicy) -> None:
        """Watches nobody yet."""
        self._policy: Final = policy
        self._hosts: Final[dict[str, _Watched]] = {}
        self._every: Final[dict[int, int]] = {}  # by replica
        self._decided_at = -math.inf
        self._began_at = math.inf  # when the pace of a replica was first known

    def ask(self, hosts: Iterable[HostRecord], now: float) -> list[Send]:
        """Returns the questions that are due at `now` (seconds), to hosts that are ready."""
        found = []
        present = [host for host in hosts if host.state is HostState.READY]
        if now - self._decided_at >= _EARLY * self._policy.ask_s:
            self._decided_at = now
            self._decide(present, now)
        for host in present:
            known = self._hosts.get(host.name)
            if known is None or known.incarnation != host.incarnation:
                known = self._hosts[host.name] = _Watched(host.incarnation)
            is_new = known.rate is None and host.replica is not None
            if now - known.asked_at >= self._policy.ask_s * (_EARLY if is_new else 1.0):
                known.asked_at = now
                every = 0 if host.replica is None else self._every.get(host.replica, 0)
                found.append(Send(host.name, Watch(now, every)))
        return found

    def answered(self, host: HostRecord, report: HostReport, now: float) -> list[HostObserved]:
        """Takes an answer, or another one, to the last question."""
        known = self._hosts.get(host.name)
        if known is None or known.incarnation != host.incarnation or known.asked_at != report.sent_s:
            return []
        trip = RoundTrip(report.sent_s, report.received_s, report.replied_s, now)
        if trip.least_s <= trip.most_s:  # a clock that does not go backwards
            known.rounds.append((now, trip))
        while known.rounds and known.rounds[0][0] < now - ROUNDS_S:
            known.rounds.popleft()
        if not known.rounds:
            return []
        if known.steps is not None and now > known.steps[0]:
            rate = max(report.steps - known.steps[1], 0) / (now - known.steps[0])
            known.rate = max(rate, _SLOWER * (known.rate or 0.0))
        if report.steps:
            known.steps = now, report.steps
        known.clock = report.clock
        if report.recorded is not None:
            known.cost_s = report.recorded.cost_s
        same = report.clock and report.clock == self._policy.clock
        clock = Offset(0.0, 0.0) if same else offset_of([one for _, one in known.rounds])
        return [HostObserved(host.name, host.incarnation, report, clock)]

    def _decide(self, hosts: list[HostRecord], now: float) -> None:
        """Decides which steps each replica records: multiples of a power of two, alike on all its parts."""
        costs: dict[str, float] = {}
        rates: dict[int, float | None] = {}
        for host in hosts:
            known = self._hosts.get(host.name)
            if host.replica is None:
                continue
            if known is None or known.rate is None or known.incarnation != host.incarnation:
                rates[host.replica] = None
                continue
            place = known.clock or host.machine or host.name
            costs[place] = costs.get(place, 0.0) + known.cost_s
            before = rates.setdefault(host.replica, 0.0)
            rates[host.replica] = None if before is None else max(before, known.rate)
        if any(rate is not None for rate in rates.values()):
            self._began_at = min(self._began_at, now)
        early_s = max(_EARLY * (now - self._began_at), _EARLY * self._policy.record_s)
        wanted_s = min(self._policy.record_s, early_s)
        every_s = max(wanted_s, max(costs.values(), default=0.0) / SHARE)
        for replica, rate in rates.items():
            self._every[replica] = 0 if rate is None else _power_of_two(rate * every_s)

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        for every in self._every.values():
            assert every == 0 or every & (every - 1) == 0, self._every
        for name, known in self._hosts.items():
            assert all(trip.least_s <= trip.most_s for _, trip in known.rounds), name


def _power_of_two(steps: float) -> int:
    """The smallest power of two that is at least so large."""
    return 1 << max(math.ceil(math.log2(min(max(steps, 1.0), _MOST_EVERY))), 0)
