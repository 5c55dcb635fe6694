"""Keeps the BLAS of a process on one thread, as long as any kernel uses it.

Kernels that need several threads call it from several (`product`). Threads of the BLAS would stay awake
up to 100 ms after a product and take cores from the next kernel, and their number would change the bits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits


class _Limit:
    """The limit of the process, with a count of holders."""

    def __init__(self) -> None:
        self._lock, self._holders = threading.Lock(), 0
        self._limits: threadpool_limits | None = None

    def hold(self) -> None:
        with self._lock:
            if not self._holders:
                self._limits = threadpool_limits(limits=1, user_api="blas")
            self._holders += 1

    def release(self) -> None:
        """Restores the original limit with the last holder."""
        with self._lock:
            self._holders -= 1
            if not self._holders and self._limits is not None:
                self._limits.restore_original_limits()
                self._limits = None


_LIMIT = _Limit()


@contextmanager
def blas_on_one_thread() -> Iterator[None]:
    """Keeps the BLAS on the thread that calls it, for the block. May be nested, and entered from several
    threads.
    """
    _LIMIT.hold()
    try:
        yield
    finally:
        _LIMIT.release()
