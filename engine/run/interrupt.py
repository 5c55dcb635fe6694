"""Ctrl-C: the first one ends a run cleanly, with a last checkpoint; the second one ends it at once.

A process that was started with SIGINT ignored, as a script's jobs in the background are, keeps ignoring it,
as Python does; SIGTERM ends its run in the same two steps.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from partita.engine.run.run import Run

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and the signal of schedulers and `timeout`."""


class Interrupted(KeyboardInterrupt):
    """The run was stopped cleanly, by Ctrl-C or SIGTERM.

    Attributes:
        run: the result so far, from its last checkpoint.
    """

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run


@contextmanager
def ends_on_sigterm() -> Iterator[None]:
    """Lets SIGTERM raise KeyboardInterrupt as Ctrl-C does, so that temporary files are removed.

    A handler of the user's own stays. Only the main thread can set handlers; in another thread nothing
    changes.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def stops_on_ctrl_c(request_stop: Callable[[], None]) -> Iterator[None]:
    """Lets the first signal call `request_stop`; after it, signals do again what they did before.

    Ignored signals stay ignored. Only the main thread can set handlers; in another thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    before = {n: handler for n, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, frame: FrameType | None) -> None:
        restore()
        request_stop()

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        restore()
