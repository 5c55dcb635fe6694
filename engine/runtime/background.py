"""Long work on a thread of its own, while the host goes on answering: a silent host is taken for dead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from threading import Lock, Thread
from typing import Generic, TypeVar

Result = TypeVar("Result")


class BackgroundQueue(Generic[Result]):
    """Calls functions one after the other, in the order given. Used by the host's thread alone."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        """An empty queue.

        Args:
            name: of its threads.
            wake: called, from any thread, when `finished` has something.
        """
        self._name, self._wake = name, wake
        self._lock = Lock()
        self._waiting: deque[Callable[[], Result]] = deque()
        self._thread: Thread | None = None
        self._results: deque[Result | _Raised] = deque()

    @property
    def idle(self) -> bool:
        """Whether no function runs or waits."""
        with self._lock:
            return self._thread is None

    def start(self, function: Callable[[], Result]) -> None:
        """Calls a function now, or after those before it."""
        with self._lock:
            self._waiting.append(function)
            if self._thread is not None:
                return
            thread = self._thread = Thread(target=self._work, name=self._name)
        thread.start()

    def finished(self) -> Iterator[Result]:
        """The results since the last call.

        Raises:
            BaseException: the one that a function raised.
        """
        while self._results:
            result = self._results.popleft()
            if isinstance(result, _Raised):
                raise result.error
            yield result

    def close(self) -> None:
        """Waits for all functions."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                function = self._waiting.popleft()
            try:
                self._results.append(function())
            except BaseException as error:  # noqa: BLE001 - raised by `finished`, on the host's thread
                self._results.append(_Raised(error))
            self._wake()


class _Raised:
    def __init__(self, error: BaseException) -> None:
        self.error = error
