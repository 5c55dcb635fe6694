"""Splits the rows of a kernel over threads. The compiled loops run without the GIL, so Python's threads will
do.

Each row is computed by one thread in the order in which one thread alone would: the number of threads never
shows in the bits. (Numba's own threads are not used: its default layer aborts a process that enters it twice
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

    One team may serve many kernels, and calls from several threads at once. The helpers end with `close()`,
    or when nobody holds the team any more.
    """

    def __init__(self, threads: int = 1, *, thread_operations: float = 500_000) -> None:
        """A team of `threads`, the caller included.

        Waking a helper costs some 50 microseconds (a guess for the machines that we know), so a run of rows
        goes to a thread of its own only if it holds `thread_operations` operations, some 100 microseconds.
        """
        assert threads >= 1, f"a team of {threads} threads"
        self.threads, self._worth = threads, thread_operations
        self._helpers: ThreadPoolExecutor | None = None
        if threads > 1:  # what is not finite is for those to see who made the call
            ignore = partial(np.seterr, all="ignore")
            self._helpers = ThreadPoolExecutor(threads - 1, thread_name_prefix="kernel", initializer=ignore)

    def at_most(self, threads: int) -> ThreadPool:
        """This team for calls on which no more than so many of its threads work. It ends with this one."""
        if threads >= self.threads:
            return self
        fewer = copy(self)
        fewer.threads = threads
        return fewer

    def split(
        self, start: int, stop: int, work: Callable[[int, int], None], *, operations: float = math.inf
    ) -> None:
        """Calls `work(a, b)` for nearly equal runs that cover `[start, stop)`, and returns when all are done.

        Args:
            start: of the rows.
            stop: of the rows.
            work: what to do with rows `[a, b)`; it is called from several threads at once.
            operations: how many the rows need in all, roughly.

        Raises:
            Exception: what the first run raised that raised; the others have ended by then too.
        """
        pieces = int(min(self.threads, stop - start, operations / self._worth if self._worth else math.inf))
        if pieces <= 1 or self._helpers is None:
            if start < stop:
                work(start, stop)
            return
        cuts = [start + (stop - start) * piece // pieces for piece in range(pieces + 1)]
        others: list[Future[None]] = [self._helpers.submit(work, a, b) for a, b in pairwise(cuts[1:])]
        try:
            work(cuts[0], cuts[1])
        finally:  # whatever happens, nobody uses the arrays any more when this returns
            wait(others)
        for other in others:
            other.result()

    def close(self) -> None:
        """Ends the helpers. The team cannot be used afterwards, unless it is of one thread."""
        if self._helpers is not None:
            self._helpers.shutdown(wait=True)
