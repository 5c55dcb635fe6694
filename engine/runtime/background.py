"""What takes long is done beside the talk: on a thread of its own, while the host goes on answering.

A host that says nothing for a few seconds is taken for dead. It must not know what is done.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Outcome = TypeVar("Outcome")


class BackgroundQueue(Generic[Outcome]):
    """Does one thing after the other, in the order asked for. Used by the host's thread alone."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        """Nothing is under way.

        Args:
            name: of its threads.
            wake: called, from any thread, when there is something for `finished`.
        """
        self._name, self._wake = name, wake
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], Outcome]] = deque()
        self._thread: threading.Thread | None = None
        self._outcomes: deque[Outcome | _Raised] = deque()

    @property
    def idle(self) -> bool:
        """Whether nothing is under way or waits its turn."""
        with self._lock:
            return self._thread is None

    def start(self, act: Callable[[], Outcome]) -> None:
        """Begins, or waits its turn."""
        with self._lock:
            self._waiting.append(act)
            if self._thread is not None:
                return
            thread = self._thread = threading.Thread(target=self._live, name=self._name)
        thread.start()

    def finished(self) -> Iterator[Outcome]:
        """What was done since the last call.

        Raises:
            BaseException: what was raised meanwhile.
        """
        while self._outcomes:
            outcome = self._outcomes.popleft()
            if isinstance(outcome, _Raised):
                raise outcome.error
            yield outcome

    def close(self) -> None:
        """Waits for all of it."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _live(self) -> None:
        """The thread's life: as long as something waits."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                act = self._waiting.popleft()
            try:
                self._outcomes.append(act())
            except BaseException as error:  # noqa: BLE001 - raised by `finished`, on the host's thread
                self._outcomes.append(_Raised(error))
            self._wake()


class _Raised:
    def __init__(self, error: BaseException) -> None:
        self.error = error
