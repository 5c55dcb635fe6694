"""Scratch arrays of the threads of a pool, allocated while calls are prepared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import aligned


class Scratch:
    """An array for each thread of a pool; a thread takes one, and waits while all are taken."""

    def __init__(self, threads: int, dtype: np.dtype[Any]) -> None:
        self._threads, self._dtype, self._size = threads, dtype, -1
        self._free: SimpleQueue[Array]
        self.reserve(0)

    def reserve(self, size: int) -> None:
        """Makes each array at least so large. Not while one is taken."""
        if size <= self._size:
            return
        self._size, self._free = size, SimpleQueue()
        for _ in range(self._threads):
            self._free.put(aligned((size,), self._dtype))

    @contextmanager
    def take(self, size: int) -> Iterator[Array]:
        """The first numbers of a free array, `[size]`, not initialised; from any thread."""
        array = self._free.get()
        try:
            yield array[:size]
        finally:
            self._free.put(array)
