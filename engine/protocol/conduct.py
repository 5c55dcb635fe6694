"""Conduct of senders: which refusals are reported, and which sender is cut off.

A correct host is never refused anything: the simulator ends a run in which one is. So the first refusal of a
sender is reported by name, and a few within a minute cut it off: its receiver takes nothing more of that
process, and the coordinator replaces it as if it had died. This module must not know how messages travel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from partita.engine.protocol import messages as m
from partita.engine.protocol.checkpoint_messages import LostPushes, SaveFailed
from partita.engine.protocol.watch_messages import HostReport

Verdict: TypeAlias = Literal["first", "again", "cut off"]

MOST_REFUSED: Final = 8
"""Refusals of one sender within `WINDOW_S` that cut it off."""

WINDOW_S: Final = 60.0

MOST_ACCUSED: Final = 2
"""Hosts that a process may cut off before the coordinator takes it for the one that misbehaves."""

BURST: Final = 4096
RATE_S: Final = 16.0
"""Messages without work that a process may send: a burst, and as many per second since its first."""

_MOST_RECORDS: Final = 1 << 16

_RARE: Final = frozenset(
    {
        *(m.Hello, m.DirectoryAck, m.SetUpProgress, m.Ready, m.Heartbeat, m.Failed, m.Refused),
        *(m.WaitReport, LostPushes, SaveFailed, HostReport),
    }
)
"""Kinds that are sent a few times a second at most. All others carry work, which has windows of its own."""


@dataclass(slots=True)
class _Record:
    refused: int = 0
    since: float = float("-inf")  # of the refusals that are counted
    rare: int = 0
    first_at: float = float("-inf")  # message of a rare kind
    accused: set[tuple[str, int]] = field(default_factory=set)  # processes
    is_reported: bool = False
    is_cut_off: bool = False


@dataclass(eq=False)
class Conduct:
    """Records of senders, by name; `forget` those whose process was replaced. Those of `needed` are reported
    and never cut off.
    """

    needed: frozenset[str] = frozenset()
    _records: dict[str, _Record] = field(default_factory=dict)

    def _record(self, sender: str) -> _Record:
        found = self._records.get(sender)
        if found is None:
            found = self._records[sender] = _Record()
            if len(self._records) > _MOST_RECORDS:
                del self._records[next(iter(self._records))]
        return found

    def forget(self, sender: str) -> None:
        """Begins anew for the next process of this name; a reported one is not reported again."""
        found = self._records.pop(sender, None)
        if found is not None and found.is_reported and not found.is_cut_off:
            self._records[sender] = _Record(is_reported=True)

    def is_cut_off(self, sender: str) -> bool:
        """Returns whether nothing more of this sender is taken."""
        found = self._records.get(sender)
        return found is not None and found.is_cut_off

    def refused(self, sender: str, now: float) -> Verdict:
        """Counts a refusal at `now` (seconds), and returns what follows from it."""
        record = self._record(sender)
        if now - record.since > WINDOW_S:
            record.refused, record.since = 0, now
        record.refused += 1
        if record.refused >= MOST_REFUSED and not record.is_cut_off and sender not in self.needed:
            record.is_cut_off = record.is_reported = True
            return "cut off"
        is_first, record.is_reported = not record.is_reported, True
        return "first" if is_first else "again"

    def flood(self, sender: str, message: Any, now: float) -> str | None:
        """Returns why a message at `now` (seconds) is one too many; None if it is not.

        What waited in a queue while this process was stopped comes at once, so what counts is the average
        since the first message.
        """
        if type(message) not in _RARE:
            return None
        return self.too_many(sender, type(message).__name__, now)

    def too_many(self, sender: str, kind: str, now: float) -> str | None:
        """Returns why a message of this kind is one too many, of any kind that a sender rarely sends."""
        record = self._record(sender)
        if not record.rare:
            record.first_at = now
        record.rare += 1
        allowed = BURST + RATE_S * (now - record.first_at)
        if record.rare <= allowed:
            return None
        return f"a flood, of which a {kind} is message {record.rare:,}"

    def accused(self, accuser: str, process: tuple[str, int]) -> bool:
        """Counts a process that another host has cut off, once; returns whether the accuser is believed."""
        accused = self._record(accuser).accused
        if len(accused) <= MOST_ACCUSED:
            accused.add(process)
        return len(accused) <= MOST_ACCUSED
