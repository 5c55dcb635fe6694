"""A disk that fails: one of the calls that change it raises, or the process ends there for good."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CALLS = ("open", "write", "fsync", "close", "replace", "rename", "unlink", "mkdir", "rmdir")


class Crash(BaseException):
    """The process is gone: nothing that would clean up can run either."""


class FaultyDisk:
    """Counts the calls to `os` that change the disk; the one of number `fail_at` does not happen.

    With `crash` every later one does not happen either. A failing write first writes half.
    """

    def __init__(self, *, fail_at: int, crash: bool) -> None:
        self.fail_at = fail_at
        self.crash = crash
        self.calls = 0

    def wrap(self, name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if name == "close" or (name == "open" and not arguments[1] & os.O_CREAT):
                return real(*arguments, **options)
            self.calls += 1
            if self.calls == self.fail_at or (self.crash and self.calls > self.fail_at):
                if name == "write":
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                if self.crash:
                    raise Crash(name)
                raise OSError(28, f"no {name} on this disk")
            return real(*arguments, **options)

        return call

    @contextmanager
    def installed(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self.wrap(name))
            yield
