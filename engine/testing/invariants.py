"""Invariants: a violation names the invariant's number, and an outcome reports it with the last events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

ProcessId: TypeAlias = tuple[str, int]
"""A process: (name, incarnation)."""


class Violation(AssertionError):
    """An invariant does not hold; the text begins with its number."""


def require(holds: bool, invariant: str, *details: object) -> None:
    """Raises `Violation` unless the invariant holds."""
    if not holds:
        raise Violation(f"{invariant}: {' '.join(str(detail) for detail in details)}")


class Writers:
    """The one incarnation of each host that may act (I4)."""

    def __init__(self) -> None:
        self._current: dict[str, int] = {}

    def replaced(self, name: str, incarnation: int) -> None:
        """Allows this incarnation, and no earlier one from now on."""
        require(incarnation > self._current.get(name, -1), "I4", name, incarnation, "was there before")
        self._current[name] = incarnation

    def is_current(self, process: ProcessId) -> bool:
        """Returns whether nothing has replaced this process."""
        return self._current.get(process[0]) == process[1]

    def require_current(self, process: ProcessId, what: str, about: object) -> None:
        """Raises `Violation` if a replaced process acts."""
        current = self._current[process[0]]
        require(process[1] == current, "I4", process, what, about, "while", current, "is this host")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a schedule. `violation` is None when all invariants held; `trace` is then kept on demand."""

    seed: int
    violation: str | None
    ending: str
    events: int
    virtual_s: float
    trace: tuple[str, ...]
