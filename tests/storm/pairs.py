"""Which shards have a backup with the same state. Durability `replicated` promises nothing where both die at
once, so a storm strikes one of them only while the other could go on alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

DEAD_S: Final = 3.5
"""A process that is frozen for less is not replaced."""

_SAME: Final = re.compile(r"shard (\d+) and backup \1 have the same")
_ONE: Final = re.compile(r"(?:shard|backup) (\d+)")


class Pairs:
    """The pairs of one life of a run's own process, from the events that it writes."""

    def __init__(self, events: Path) -> None:
        self._events, self._read = events, 0
        self._whole: set[int] = set()
        self._waits: dict[int, float] = {}  # until when, for pairs of which one is frozen for a moment

    def may_strike(self, name: str) -> bool:
        """Whether the other one of the pair could go on alone; of a host without a pair, true."""
        self._read_events()
        pair = _pair_of(name)
        return pair is None or (pair in self._whole and time.monotonic() >= self._waits.get(pair, 0.0))

    def among(self, names: Iterable[str]) -> list[str]:
        """Returns those that may be struck together: one of each pair."""
        found: dict[object, str] = {}
        for name in names:
            if self.may_strike(name):
                pair = _pair_of(name)
                found.setdefault(name if pair is None else pair, name)
        return [*found.values()]

    def struck(self, name: str, frozen_s: float | None) -> None:
        """Notes that one of a pair was killed, or frozen for so long."""
        pair = _pair_of(name)
        if pair is None:
            return
        if frozen_s is not None and frozen_s < DEAD_S:
            self._waits[pair] = time.monotonic() + frozen_s + 1.0
        else:
            self._whole.discard(pair)

    def _read_events(self) -> None:
        try:
            with self._events.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:  # it has not begun
            return
        *lines, _ = data.split(b"\n")
        self._read += sum(len(line) + 1 for line in lines)
        for line in lines:
            self._take_in(msgspec.json.decode(line))

    def _take_in(self, event: dict[str, Any]) -> None:
        if event["what"] == "restart":
            self._whole -= {pair for name, _ in event["hosts"] if (pair := _pair_of(name)) is not None}
        elif event["what"] == "line" and (same := _SAME.match(event["text"])):
            self._whole.add(int(same[1]))


def _pair_of(name: str) -> int | None:
    found = _ONE.fullmatch(name)
    return None if found is None else int(found[1])
