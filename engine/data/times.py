"""How long computing waited for data, and the sentence that says so."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from partita.engine.data.prepared import Prepared

SAID_FROM: Final = 0.05
"""Share of the time, waited for data, from which it is said."""


class FeedTimes(NamedTuple):
    """Sums since a feed was opened.

    Args:
        waited_s: seconds for which computing waited for minibatches.
        made_s: seconds in which minibatches were made, of all workers.
        made: examples that were made.
        workers: threads or processes that make them.
    """

    waited_s: float
    made_s: float
    made: int
    workers: int

    def since(self, before: FeedTimes, *, passed_s: float) -> tuple[float, ...]:
        """Returns the sums of `ReadSums` since an earlier time."""
        made_s = (self.made_s - before.made_s) / self.workers
        return self.waited_s - before.waited_s, passed_s, made_s, float(self.made - before.made)


NOTHING_READ: Final = FeedTimes(0.0, 0.0, 0, 1)


class ReadClock:
    """Sums of reading the data from one call to the next. Time counts from `begin`."""

    def __init__(self, times: Callable[[], FeedTimes | None]) -> None:
        """Reads from a feed's `times`, which are None where nothing is read."""
        self._times, self._before = times, NOTHING_READ
        self._at: float | None = None  # when the last step was done, or the first began

    def begin(self, now: float) -> None:
        """Notes the begin of the first step; later calls change nothing."""
        if self._at is None:
            self._at = now

    def since_last(self, now: float) -> tuple[float, ...]:
        """Returns the sums of `ReadSums` since the last call, or `begin`; () where nothing is read."""
        times = self._times()
        if times is None:
            return ()
        found = times.since(self._before, passed_s=now - (now if self._at is None else self._at))
        self._before, self._at = times, now
        return found


class ReadSums(NamedTuple):
    """Sums over parts that read data.

    Args:
        waited_s: seconds for which computing waited for data.
        passed_s: seconds in all.
        made_s: seconds in which all workers together made minibatches.
        made: examples that were made.
    """

    waited_s: float = 0.0
    passed_s: float = 0.0
    made_s: float = 0.0
    made: float = 0.0

    def plus(self, more: Sequence[float]) -> ReadSums:
        """Adds sums that a part has reported; () for none."""
        return ReadSums(*map(sum, zip(self, more, strict=True))) if more else self

    @property
    def share(self) -> float:
        """The share of the time that was waited; NaN where nothing is read."""
        return self.waited_s / self.passed_s if self.passed_s else math.nan

    def sentence(self, prepared: Prepared) -> str:
        """Words how long was waited, and what to do; "" where that was not long."""
        if not self.share >= SAID_FROM or not self.made_s:
            return ""
        rate = self.made / self.made_s
        could = self.made / max(self.passed_s - self.waited_s, 1e-9)
        return (
            f"data: {self.share:.0%} of the time waited; the reader gives {rate:,.0f} examples/s, the "
            f"network takes {could:,.0f}: {_remedy(prepared, could / max(rate, 1e-9))}"
        )


def _remedy(prepared: Prepared, lacks: float) -> str:
    workers = min(max(math.ceil(prepared.workers * lacks), prepared.workers + 1), os.cpu_count() or 1)
    if workers > prepared.workers:
        return f"Loader(data, workers={workers})"
    if not prepared.processes and prepared.transforms and prepared.dataset.seekable:
        return "Loader(data, processes=True), if its time goes into Python code"
    return "make less of each example when it is read, or read from a faster disk"
