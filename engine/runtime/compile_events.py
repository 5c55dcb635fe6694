"""Counts the functions that Numba compiles, so that a waiting user sees why.

Functions that are loaded from the cache are not counted: that takes milliseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from numba.core import event


class _Listener(event.Listener):
    def __init__(self, report: Callable[[int], object]) -> None:
        self._report, self._thread, self._compiled = report, threading.get_ident(), 0

    def on_start(self, found: event.Event) -> None:
        if threading.get_ident() == self._thread:
            self._report(self._compiled)

    def on_end(self, found: event.Event) -> None:
        if threading.get_ident() == self._thread:
            self._compiled += 1
            self._report(self._compiled)


@contextmanager
def reports_compiling(report: Callable[[int], object]) -> Iterator[None]:
    """Calls `report` with the count so far whenever this thread begins or ends to compile a function."""
    with event.install_listener("numba:compile", _Listener(report)):
        yield
