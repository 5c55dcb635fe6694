"""Slow checks on threads of their own: whoever has a door answers it meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Self

from partita.engine.transport.door import Door


class Probes:
    """Runs checks; their results come to the thread of the door as events of a machine."""

    def __init__(self, door: Door, *, at_once: int) -> None:
        """No check runs yet.

        Args:
            door: is woken by every result.
            at_once: number of threads.
        """
        self._door = door
        self._found: SimpleQueue[object] = SimpleQueue()
        self._threads = ThreadPoolExecutor(at_once, "probe")

    def submit(self, check: Callable[[], object]) -> None:
        """Runs a check soon. It returns an event."""
        self._threads.submit(self._run, check)

    def found(self) -> Iterator[object]:
        """Yields the results that are there."""
        while not self._found.empty():
            yield self._found.get()

    def close(self) -> None:
        """Waits for checks that run, and drops the others."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, check: Callable[[], object]) -> None:
        self._found.put(check())
        self._door.wake()
