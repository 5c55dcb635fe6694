"""Processes that are slowed down: they are stopped for most of each period, by SIGSTOP and SIGCONT."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import TracebackType
from typing import Final, Self

import psutil

PERIOD_S: Final = 0.02
"""In each, a process runs for its share of it: one that is 100 times slower for a fifth of a millisecond."""


def hosts() -> dict[str, int]:
    """The processes that this one has started as hosts of a run, by the host's name."""
    found = {}
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            command = child.cmdline()
            if "partita.engine.launch.worker" in command:
                found[command[-1]] = child.pid
    return found


class Slowed:
    """Slows processes from `begin` on until it is left, when they run again. Use it as a context manager.

    Args:
        factors: how many times as slow, by the host's name.
    """

    def __init__(self, factors: dict[str, float]) -> None:
        self._factors = factors
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        """The hosts are there: looks for their processes, and slows them."""
        running = hosts()
        for name, factor in self._factors.items():
            thread = threading.Thread(target=self._slow, args=(running[name], factor), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _slow(self, pid: int, factor: float) -> None:
        with contextlib.suppress(ProcessLookupError):
            while not self._over.is_set():
                os.kill(pid, signal.SIGSTOP)
                self._over.wait(PERIOD_S * (1.0 - 1.0 / factor))
                os.kill(pid, signal.SIGCONT)
                self._over.wait(PERIOD_S / factor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """All processes run again."""
        self._over.set()
        for thread in self._threads:
            thread.join()
