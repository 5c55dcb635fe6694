"""Memory for payloads, used again: pages that a process touches for the first time cost several copies."""

from __future__ import annotations

import threading
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Memory: TypeAlias = npt.NDArray[np.uint8]

_MAX_SPARE: Final = 2


class BufferPool:
    """Buffers of one connection. At most two wait to be used again. Any thread."""

    def __init__(self) -> None:
        self._spare: list[npt.NDArray[Any]] = []
        self._lock = threading.Lock()

    def take(self, n_bytes: int) -> Memory:
        """Returns a buffer of at least this size, and at most twice as large."""
        with self._lock:
            for n, buffer in enumerate(self._spare):
                if n_bytes <= buffer.size <= 2 * n_bytes:
                    return self._spare.pop(n)
        return np.empty(n_bytes, np.uint8)

    def give_back(self, buffer: Memory) -> None:
        """Keeps a buffer that nobody reads any more, in place of the one that waits longest."""
        with self._lock:
            self._spare.append(buffer)
            del self._spare[:-_MAX_SPARE]
