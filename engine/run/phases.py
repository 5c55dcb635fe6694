"""Phases of work without metrics, such as planning and starting hosts; shown where they last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Literal, Self, TextIO, TypeAlias, get_args

from partita.engine.protocol.coordinator_effects import Starting
from partita.layers.checks import check_choice
from partita.layers.text import counted

Show: TypeAlias = Literal["auto", "live", "lines", "nothing"]
"""Ways to show progress."""

OnPhase: TypeAlias = Callable[[str], object]
"""Called with each phase, and its progress, in a few words."""

MOMENT_S: Final = 1.0
LOOK_EVERY_S: Final = 0.25


class Phases:
    """Shows the newest phase, once `after_s` have passed.

    A thread of its own shows it, so that the caller need not look at a clock. Use it as a context manager.
    """

    def __init__(
        self, show: Show = "auto", *, after_s: float = MOMENT_S, stream: TextIO | None = None
    ) -> None:
        """`show` is as in `train`; `stream` is standard error if not given."""
        self._show, self._after_s, self._stream = show, after_s, stream
        self._text = ""
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def of(cls, show: Show | OnPhase) -> AbstractContextManager[OnPhase]:
        """Returns phases that are shown so, or that call a function.

        Raises:
            ValueError: `show` is neither a way to show nor a function.
        """
        if callable(show):
            return nullcontext(show)
        check_choice(show, "show is", get_args(Show))
        return cls(show)

    def __call__(self, text: str) -> None:
        """Begins a new phase, or updates the present one."""
        self._text = text
        if self._thread is None and self._show != "nothing":
            self._thread = threading.Thread(target=self._look, name="phases", daemon=True)
            self._thread.start()

    def _look(self) -> None:
        if self._is_over.wait(self._after_s):
            return
        from partita.engine.run.display import Display  # here, because it is seldom shown and imports rich

        with Display(self._show, stream=self._stream) as display:
            display.phase(self._text)
            while not self._is_over.wait(LOOK_EVERY_S):
                display.phase(self._text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()


def silent(text: str) -> None:
    """Receives phases and shows nothing."""


def starting(progress: Starting, kind: tuple[str, str]) -> str:
    """Describes the progress of hosts that start; `kind` has words for one of them and for several."""
    hosts = counted(progress.hosts, *kind)
    far = [f"{progress.ready:,} ready"] if progress.ready else []
    far += [f"{counted(progress.compiled, 'function')} compiled"] if progress.compiled else []
    far += [f"waiting for {progress.waits_for}"] if progress.waits_for else []
    return f"starting {hosts}: {', '.join(far)}" if far else f"starting {hosts}"


def compiling(compiled: int) -> str:
    """Describes the number of compiled functions, as a phase."""
    return f"compiling: {counted(compiled, 'function')} so far"
