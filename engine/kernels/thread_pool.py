"""Splits the rows of a kernel over Python threads; compiled loops run without the GIL.

Each row is computed by one thread in the order in which one thread alone would: the number of threads never
changes the bits. (Numba's own threads are not used: its default layer aborts a process that enters it twice
at a time.)
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable
from copy import copy
from itertools import pairwise
from queue import SimpleQueue
from typing import NamedTuple, TypeAlias

import numpy as np

from partita.partitioner.cluster.threads import ThreadShares, WorkKind

Work: TypeAlias = Callable[[int, int], None]


class ThreadPool:
    """Threads that work on one kernel call together: the caller, and `threads - 1` helpers.

    One pool may serve many kernels, and calls from several threads at once. The helpers end with `close()`,
    or when the pool is garbage-collected.

    Attributes:
        threads: the most that a call uses.
        shares: the least work of each.
    """

    def __init__(self, threads: int = 1, *, shares: ThreadShares = ThreadShares()) -> None:  # noqa: B008 - frozen
        """Starts a pool of `threads`, the caller included.

        Args:
            threads: the most that a call may use.
            shares: the least work of each thread, as the plan has it.
        """
        assert threads >= 1, f"a pool of {threads} threads"
        self.threads, self.shares = threads, shares
        self._helpers = _Helpers(threads - 1) if threads > 1 else None

    def at_most(self, threads: int) -> ThreadPool:
        """This pool with fewer threads for each call. It ends with this one."""
        if threads >= self.threads:
            return self
        fewer = copy(self)
        fewer.threads = threads
        return fewer

    def pieces(self, rows: int, amount: float = math.inf, *, kind: WorkKind = "loop") -> int:
        """The spans into which `split` cuts so many rows; 1 or 0 where the caller does all."""
        return min(rows, self.shares.count(kind, amount, most=self.threads))

    def split(
        self,
        start: int,
        stop: int,
        work: Work,
        *,
        operations: float = math.inf,
        kind: WorkKind = "loop",
    ) -> None:
        """Calls `work(a, b)` for nearly equal spans that cover `[start, stop)`; returns when all are done.

        `work` is called from several threads at once; `operations` is roughly how much work all rows are, in
        the unit of its kind.

        Raises:
            Exception: the first error of a span; the other spans have ended by then.
        """
        pieces = self.pieces(stop - start, operations, kind=kind)
        if pieces <= 1 or self._helpers is None:
            if start < stop:
                work(start, stop)
            return
        cuts = [start + (stop - start) * piece // pieces for piece in range(pieces + 1)]
        ended = self._helpers.begin(work, cuts[1:])
        errors: list[BaseException | None] = []
        try:
            work(cuts[0], cuts[1])
        finally:  # no thread uses the arrays any more when this returns
            errors += [ended.get() for _ in cuts[2:]]
        for error in filter(None, errors):
            raise error

    def close(self) -> None:
        """Ends the helpers. A pool of several threads cannot be used afterwards."""
        if self._helpers is not None:
            self._helpers.end()


class _Span(NamedTuple):
    """A span that a helper works on.

    Args:
        work: called with the span.
        start, stop: the span.
        ended: receives None, or the error.
    """

    work: Work
    start: int
    stop: int
    ended: SimpleQueue[BaseException | None]


class _Helpers:
    """Threads that wait for spans. A call that wakes one takes 19 to 26 microseconds longer (two cores of an
    AMD Zen 5); with an executor and its futures 51 to 75.
    """

    def __init__(self, count: int) -> None:
        self._spans: SimpleQueue[_Span | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=_help, args=(self._spans,), name=f"kernel_{n}", daemon=True)
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()
        self._stop = weakref.finalize(self, _stop, self._spans, count)

    def begin(self, work: Work, cuts: list[int]) -> SimpleQueue[BaseException | None]:
        """Has each span between two cuts worked on; returns what receives the end of each."""
        assert self._stop.alive, "the pool is closed"
        ended: SimpleQueue[BaseException | None] = SimpleQueue()
        for start, stop in pairwise(cuts):
            self._spans.put(_Span(work, start, stop, ended))
        return ended

    def end(self) -> None:
        """Ends the threads, and waits until they have ended."""
        self._stop()
        for thread in self._threads:
            thread.join()


def _stop(spans: SimpleQueue[_Span | None], count: int) -> None:
    for _ in range(count):
        spans.put(None)


def _help(spans: SimpleQueue[_Span | None]) -> None:
    """Works on spans until there is None. The caller's thread warns of numbers that are not finite."""
    with np.errstate(all="ignore"):
        while (span := spans.get()) is not None:
            error: BaseException | None = None
            try:
                span.work(span.start, span.stop)
            except BaseException as raised:  # noqa: BLE001 - the caller raises it
                error = raised
            span.ended.put(error)
            del span, error
