"""Room in which the threads of a team work, taken while calls are prepared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import aligned


class Scratch:
    """An array for each thread of a team. Who works borrows one, and waits if all are lent."""

    def __init__(self, threads: int, dtype: np.dtype[Any]) -> None:
        self._threads, self._dtype, self._size = threads, dtype, -1
        self._free: SimpleQueue[Array]
        self.reserve(0)

    def reserve(self, size: int) -> None:
        """Each array will have this many numbers, or more. Not while one is lent."""
        if size <= self._size:
            return
        self._size, self._free = size, SimpleQueue()
        for _ in range(self._threads):
            self._free.put(aligned((size,), self._dtype))

    @contextmanager
    def lent(self, size: int) -> Iterator[Array]:
        """The first numbers of an array, `[size]`, in any state; from any thread."""
        array = self._free.get()
        try:
            yield array[:size]
        finally:
            self._free.put(array)
