"""What breaks an invariant, said with its number, and how a schedule ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Life: TypeAlias = tuple[str, int]
"""A process: (name, incarnation)."""


class Violation(AssertionError):
    """An invariant does not hold; the text begins with its number."""


def demand(holds: bool, invariant: str, *what: object) -> None:
    """Raises `Violation` unless it holds."""
    if not holds:
        raise Violation(f"{invariant}: {' '.join(str(word) for word in what)}")


class Writers:
    """Who may be the host of a name now (I4)."""

    def __init__(self) -> None:
        self._living: dict[str, int] = {}

    def replaced(self, name: str, incarnation: int) -> None:
        """From now on only this incarnation."""
        demand(incarnation > self._living.get(name, -1), "I4", name, incarnation, "was there before")
        self._living[name] = incarnation

    def demand_writer(self, life: Life, what: str, about: object) -> None:
        """Nobody does this but the one that may."""
        living = self._living[life[0]]
        demand(life[1] == living, "I4", life, what, about, "while", living, "is this host")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a schedule ended. `violation` is None when every invariant held; `story` is then told on demand."""

    seed: int
    violation: str | None
    ending: str
    events: int
    virtual_s: float
    story: tuple[str, ...]
