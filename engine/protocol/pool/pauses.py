"""Pauses of the own process: while it did not run it received nothing, and nobody was silent."""

from __future__ import annotations

from typing import Final

PAUSE_S: Final = 1.0
"""Seconds between two ticks above which the process was stopped or starved; usual are 0.1 to 0.25 s."""


class OwnPauses:
    """The time in which this process did not run."""

    def __init__(self) -> None:
        """No tick has come."""
        self._ticked_at: float | None = None

    def before(self, now: float) -> float:
        """Returns the seconds of a pause that ends with this tick; 0 where the tick is on time."""
        gap_s = 0.0 if self._ticked_at is None else now - self._ticked_at
        self._ticked_at = now
        return gap_s if gap_s > PAUSE_S else 0.0
