"""Counts compilations of Numba."""

from __future__ import annotations

from numba.core import event


class Compilations(event.Listener):
    """Counts what Numba compiles meanwhile."""

    def __init__(self) -> None:
        self.count = 0

    def on_start(self, one: event.Event) -> None:
        self.count += 1

    def on_end(self, one: event.Event) -> None:
        pass
