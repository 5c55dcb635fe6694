"""Long work on a thread of its own, while the host goes on answering: a silent host is taken for dead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Result = TypeVar("Result")


class BackgroundQueue(Generic[Result]):
    """Calls functions one after the other, in the order given. Used by the host's thread alone."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        """An empty queue.

        Args:
            name: of its thread.
            wake: called, from any thread, when `finished` has something.
        """
        self._name, self._wake = name, wake
        self._thread: ThreadPoolExecutor | None = None
        self._futures: deque[Future[Result]] = deque()

    @property
    def idle(self) -> bool:
        """Returns whether no function runs or waits."""
        return all(future.done() for future in self._futures)

    def start(self, function: Callable[[], Result]) -> None:
        """Calls a function now, or after those before it."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        self._futures.append(self._thread.submit(function))
        self._futures[-1].add_done_callback(lambda _: self._wake())

    def finished(self) -> Iterator[Result]:
        """The results since the last call.

        Raises:
            BaseException: the one that a function raised.
        """
        while self._futures and self._futures[0].done():
            yield self._futures.popleft().result()

    def close(self) -> None:
        """Waits for all functions, and ends the thread."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
