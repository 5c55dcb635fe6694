"""A process that answers calls, so that no two players share threads, an allocator or a peak of memory.

`Worker` drives it: a call and its answer are a line of JSON each. `serve` is what the process runs; it ends
with its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self


class WorkerEnded(RuntimeError):
    """A process has ended that was asked for something."""


class Worker:
    """A module of this folder as a process. Use it as a context manager."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
    ) -> None:
        """Starts it, by the command `within` that starts a process in another place."""
        self._what = " ".join((module, *arguments))
        self._process = subprocess.Popen(
            [*within, sys.executable, "-m", f"benchmarks.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the served object in the process, and returns its result.

        Raises:
            WorkerEnded: the process has ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and there is no answer
            self._process.stdin.write(json.dumps([method, *arguments]) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise WorkerEnded(f"'{self._what}' exited with {self._process.wait()}; see what it printed")
        return json.loads(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()


def serve(make: Callable[[], object]) -> None:
    """Makes an object and answers calls of its methods. Whatever else is printed goes to standard error."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        served = make()
        for line in sys.stdin:
            method, *arguments = json.loads(line)
            print(json.dumps(getattr(served, method)(*arguments)), file=answers, flush=True)


def threads_of(threads: int) -> dict[str, str]:
    """The environment of a process whose OpenMP pools have so many threads."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
