"""The rounds of a benchmark: as many as fit into five minutes, or as many as the command line asks for.

A benchmark makes one or more measurements, each of several rounds. The time that is left is shared equally by
the measurements to come, less what each takes to prepare. Nothing here knows what is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

LIMIT_S: Final = 280.0
"""Seconds of a benchmark, from its command line to its report."""

FIRST: Final = 0.6
"""Share of a measurement's time; the rest is kept for measuring again."""


class Rounds:
    """The rounds of each measurement: iterate over it once for each.

    Attributes:
        most: rounds of a measurement, unless the time is over before.
    """

    def __init__(
        self,
        most: int,
        *,
        exactly: bool = False,
        limit_s: float = LIMIT_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts the time.

        Args:
            most: rounds of a measurement.
            exactly: whether there are so many, however long they take.
            limit_s: seconds of all measurements.
            now: a clock.
        """
        self.most, self._exactly, self._now = most, exactly, now
        self._ended, self._end = now(), now() + limit_s
        self._left, self._apart_s = 1, 0.0
        self._until, self._longest = 0.0, 0.0

    def expect(self, measurements: int) -> None:
        """Divides the time by so many measurements."""
        self._left = measurements

    def __iter__(self) -> Iterator[int]:
        """The rounds of the next measurement, of which there is at least one."""
        began, self._longest = self._now(), 0.0
        self._apart_s = max(self._apart_s, began - self._ended)
        self._left = max(self._left - 1, 0)
        share = max(self._end - began - self._apart_s * self._left, 0.0) / (self._left + 1)
        self._until = began + share
        return self._played(began + FIRST * share, least=1)

    def again(self) -> Iterator[int]:
        """The rounds in which the same is measured again; none if there is no time for two."""
        return self._played(self._until, least=0)

    def _played(self, until: float, *, least: int) -> Iterator[int]:
        for n in range(self.most):
            began = self._now()
            rounds = 1 if n or least else 2
            if n >= least and not self._exactly and began + rounds * self._longest > until:
                break
            yield n
            self._ended = self._now()
            self._longest = max(self._longest, self._ended - began)
