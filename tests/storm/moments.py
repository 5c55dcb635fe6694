"""What a run is doing just now, from the events that its own process writes.

A storm strikes at moments: while a host starts, a checkpoint is written, a second copy is made, or the run
ends. Durability `replicated` promises nothing where both copies of a shard die at once, so of a pair only the
one without which the other goes on is struck, until both have the same again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

Moment: TypeAlias = Literal["any", "start", "checkpoint", "copy", "end"]

DEAD_S: Final = 3.5
"""A process that is frozen for less is not replaced."""

SAVING_S: Final = 1.0
"""A checkpoint that was begun longer ago is not being written any more."""

_LATE_S: Final = 0.5  # until a line tells of what was before a fault

_SAME: Final = re.compile(r"shard (\d+) and backup \1 have the same")
_COPY: Final = re.compile(r"(?:shard|backup) (\d+)")


class Moments:
    """One life of a run's own process.

    Attributes:
        is_working: whether it has counted a step.
        is_ending: whether its work is done.
    """

    def __init__(self, events: Path, *, pairs: bool = False, length: int = 0) -> None:
        """Nothing has happened.

        Args:
            events: the file that it appends its events to.
            pairs: whether each shard has a backup.
            length: steps after which the run ends; 0: that is not known before it does.
        """
        self._events, self._read = events, 0
        self._has_pairs, self._length = pairs, length
        self._steps: dict[str, int] = {}
        self._starting: set[str] = set()
        self._saving_at = float("-inf")
        # By number of a shard, the copy that is not struck, as it has what the other lacks; "" if none does.
        self._only: dict[int, str] = {}
        self._struck_at: dict[int, float] = {}  # when one of a pair was struck last
        self._waits: dict[int, float] = {}  # until when, for pairs of which one is frozen for a moment
        self.is_working = self.is_ending = False

    def now(self, moment: Moment) -> bool:
        """Whether it is this moment."""
        self._read_events()
        match moment:
            case "start":
                return bool(self._starting) or not self.is_working
            case "checkpoint":
                return time.monotonic() - self._saving_at < SAVING_S
            case "copy":
                return self._has_pairs and any(self._only.values())
            case "end":
                return self.is_ending
            case _:
                return True

    def fits(self, name: str, moment: Moment) -> bool:
        """Whether a process is one that can be struck in this moment, as the moment is of it."""
        pair = _pair_of(name)
        match moment:
            case "start":
                return name in self._starting or (name == "coordinator" and not self.is_working)
            case "copy":
                return pair is not None and bool(self._only.get(pair))
            case _:
                return True

    def may_strike(self, name: str) -> bool:
        """Whether the other one of a pair could go on alone; of a host without a pair, true."""
        self._read_events()
        pair = _pair_of(name)
        if pair is None or not self._has_pairs:
            return True
        only = self._only.get(pair, f"shard {pair}")
        return name != only and time.monotonic() >= self._waits.get(pair, 0.0)

    def among(self, names: Iterable[str]) -> list[str]:
        """Returns those that may be struck together: one of each pair."""
        found: dict[object, str] = {}
        for name in names:
            if self.may_strike(name):
                pair = _pair_of(name) if self._has_pairs else None
                found.setdefault(name if pair is None else pair, name)
        return [*found.values()]

    def struck(self, name: str, frozen_s: float | None) -> None:
        """Notes that a process was killed, or frozen for so long."""
        pair = _pair_of(name)
        if pair is None:
            return
        self._struck_at[pair] = time.monotonic()
        if frozen_s is not None and frozen_s < DEAD_S:
            self._waits[pair] = time.monotonic() + frozen_s + 1.0
        else:
            self._only[pair] = _other(name)

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
        match event["what"]:
            case "restart":
                self._starting |= {name for name, _ in event["hosts"]}
                for name, _ in event["hosts"]:
                    self._replaced(name)
            case "ready" | "work":
                self._starting.discard(event["host"][0])
            case "saving" | "committing":
                self._saving_at = event["at"]
            case "progress":
                self.is_working = True
                self._steps[event["source"]] = event["step"]
                self.is_ending |= 0 < self._length <= 1.03 * sum(self._steps.values())
            case "ending":
                self.is_ending = True
            case "line" if same := _SAME.match(event["text"]):
                pair = int(same[1])
                if event["at"] > self._struck_at.get(pair, 0.0) + _LATE_S:
                    self._only[pair] = ""

    def _replaced(self, name: str) -> None:
        """Notes that a process is started, with the state of the other one of its pair if that has it."""
        pair = _pair_of(name)
        if pair is not None and not self._only.setdefault(pair, f"shard {pair}"):
            self._only[pair] = _other(name)


def _other(name: str) -> str:
    """Returns the other one of a pair."""
    kind, _, number = name.partition(" ")
    return f"{'backup' if kind == 'shard' else 'shard'} {number}"


def _pair_of(name: str) -> int | None:
    found = _COPY.fullmatch(name)
    return None if found is None else int(found[1])
