"""Splits the rows of a kernel over Python threads; compiled loops run without the GIL.

Each row is computed by one thread in the order in which one thread alone would: the number of threads never
changes the bits. (Numba's own threads are not used: its default layer aborts a process that enters it twice
at a time.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import copy
from functools import partial
from itertools import pairwise

import numpy as np


class ThreadPool:
    """Threads that work on one kernel call together: the caller, and `threads - 1` helpers.

    One pool may serve many kernels, and calls from several threads at once. The helpers end with `close()`,
    or when the pool is garbage-collected.
    """

    def __init__(self, threads: int = 1, *, thread_operations: float = 500_000) -> None:
        """Starts a pool of `threads`, the caller included.

        Waking a helper costs some 50 microseconds (an estimate, not measured), so a span of rows
        gets a thread of its own only if it holds `thread_operations` operations, some 100 microseconds.
        """
        assert threads >= 1, f"a pool of {threads} threads"
        self.threads, self._thread_operations = threads, thread_operations
        self._helpers: ThreadPoolExecutor | None = None
        if threads > 1:  # the caller's thread warns of numbers that are not finite
            ignore = partial(np.seterr, all="ignore")
            self._helpers = ThreadPoolExecutor(threads - 1, thread_name_prefix="kernel", initializer=ignore)

    def at_most(self, threads: int) -> ThreadPool:
        """This pool with fewer threads for each call. It ends with this one."""
        if threads >= self.threads:
            return self
        fewer = copy(self)
        fewer.threads = threads
        return fewer

    def split(
        self, start: int, stop: int, work: Callable[[int, int], None], *, operations: float = math.inf
    ) -> None:
        """Calls `work(a, b)` for nearly equal spans that cover `[start, stop)`; returns when all are done.

        `work` is called from several threads at once; `operations` is roughly how many all rows need.

        Raises:
            Exception: the first error of a span; the other spans have ended by then.
        """
        worth = operations / self._thread_operations if self._thread_operations else math.inf
        pieces = int(min(self.threads, stop - start, worth))
        if pieces <= 1 or self._helpers is None:
            if start < stop:
                work(start, stop)
            return
        cuts = [start + (stop - start) * piece // pieces for piece in range(pieces + 1)]
        others: list[Future[None]] = [self._helpers.submit(work, a, b) for a, b in pairwise(cuts[1:])]
        try:
            work(cuts[0], cuts[1])
        finally:  # no thread uses the arrays any more when this returns
            wait(others)
        for other in others:
            other.result()

    def close(self) -> None:
        """Ends the helpers. A pool of several threads cannot be used afterwards."""
        if self._helpers is not None:
            self._helpers.shutdown(wait=True)
