"""Detects a host that waits long for others, so that the user learns who waits for whom.

A wait that ends by itself was no fault: after it, only longer ones are reported. This module must not know
what is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from partita.engine.protocol.messages import WaitReport

AFTER_S: Final = 5.0
"""A wait of so many seconds is reported, unless longer ones have ended by themselves."""

MOST_NAMED: Final = 4
"""Largest number of hosts in the report of one wait."""


class StallDetector:
    """The present wait of one host."""

    def __init__(self) -> None:
        self._since = float("-inf")
        self._waits: tuple[object, tuple[tuple[str, str], ...]] = (None, ())
        self._after_s = AFTER_S  # the next wait is reported after so long
        self._report_at = float("inf")

    def present(self, now: float, *, least_s: float) -> list[tuple[str, str, float]]:
        """Returns (host, what, for how many seconds) of the present wait, if it is that long."""
        waited_s = now - self._since
        if waited_s < least_s:
            return []
        return [(host, what, waited_s) for host, what in self._waits[1][:MOST_NAMED]]

    def look(self, at: object, waits: Sequence[tuple[str, str]], now: float) -> list[WaitReport]:
        """Reports a wait when it has become long, and again each time that it has doubled.

        Args:
            at: the host's position; the same while it makes no progress.
            waits: (host, what) of everything that is missing; empty if the host does not wait.
            now: seconds.
        """
        present = at, tuple(waits)
        if present != self._waits or not waits:
            if self._waits[1] and now - self._since >= self._after_s:
                self._after_s = 2 * (now - self._since)
            self._waits, self._since = present, now
            self._report_at = now + self._after_s
            return []
        if now < self._report_at:
            return []
        waited_s = now - self._since
        self._report_at = self._since + 2 * waited_s
        return [WaitReport(host, what, waited_s) for host, what in present[1][:MOST_NAMED]]
