"""Counts the functions that Numba compiles, so that who waits can be told what for.

What is loaded from the cache is not counted: it takes milliseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from numba.core import event


class _Listener(event.Listener):
    def __init__(self, tell: Callable[[int], object]) -> None:
        self._tell, self._thread, self._compiled = tell, threading.get_ident(), 0

    def on_start(self, found: event.Event) -> None:
        """See `numba.core.event.Listener`."""
        if threading.get_ident() == self._thread:
            self._tell(self._compiled)

    def on_end(self, found: event.Event) -> None:
        """See `numba.core.event.Listener`."""
        if threading.get_ident() == self._thread:
            self._compiled += 1
            self._tell(self._compiled)


@contextmanager
def reports_compiling(tell: Callable[[int], object]) -> Iterator[None]:
    """Calls `tell` when this thread begins or ends to compile, with how many functions it has compiled."""
    with event.install_listener("numba:compile", _Listener(tell)):
        yield
