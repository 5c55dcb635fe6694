"""Processes that a storm starts: a run's own, and those of a pool. Their output goes to files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final, TypeVar

import psutil

T = TypeVar("T")

DEADLINE_S: Final = 60.0
MARK: Final = "PARTITA_STORM"
"""Variable of the environment by which everything that a storm has started is found."""

_NO_BYTECODE: Final = "PYTHONDONTWRITEBYTECODE"
"""Variable of the environment that no user sets: each start would compile all modules that have changed."""

LOADED: Final = 15.0
"""Seconds that a process that was told to end may take on a machine that does much else."""


class Process:
    """A program of Python that is started by the same command again and again.

    Attributes:
        lives: how often it was started.
        output: the file of all that it prints.
    """

    def __init__(self, output: Path, *arguments: str, env: dict[str, str]) -> None:
        """Starts nothing yet."""
        self.output, self.lives = output, 0
        self._arguments, self._env = arguments, env
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        """Starts it, with more arguments."""
        self.lives += 1
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._arguments, *more],
                env={name: text for name, text in os.environ.items() if name != _NO_BYTECODE} | self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code, if it has ended."""
        return None if self._process is None else self._process.poll()

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def signal(self, number: int) -> None:
        """Sends it a signal, if it runs."""
        if self.is_running and self._process is not None:
            self._process.send_signal(number)

    def end(self) -> None:
        """Ends it by SIGTERM; by SIGKILL where that takes too long. Raises AssertionError in that case."""
        if self._process is None or not self.is_running:
            return
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(LOADED)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"{self.output} has not ended {LOADED} s after SIGTERM") from None

    def kill(self) -> None:
        """Ends it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wait_for(self, text: str, *, since: int = 0) -> str:
        """Waits for a line with this text; returns it."""
        return wait_for(lambda: self._line(text, since), f"{self.output} has no line with {text!r}")

    def _line(self, text: str, since: int) -> str | None:
        lines = self.output.read_text(errors="replace")[since:].splitlines()
        found = next((line for line in lines if text in line), None)
        assert found is not None or self.is_running, f"{self.output}: it ended without {text!r}"
        return found


def wait_for(look: Callable[[], T | None], what: str, *, within_s: float = DEADLINE_S) -> T:
    """Waits until something is found, and returns it. Raises AssertionError."""
    until = time.monotonic() + within_s
    while (found := look()) is None:
        assert time.monotonic() < until, f"{what} within {within_s:g} s"
        time.sleep(0.02)
    return found


def hosts_below(pid: int) -> Iterator[tuple[str, psutil.Process]]:
    """Yields names and processes of the hosts among the descendants of a process."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return
    for child in children:
        name = name_of(child)
        if is_host(name):
            yield name, child


def name_of(process: psutil.Process) -> str:
    """Returns the name that a process shows; empty for one that has ended."""
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else str(process.name())
    except psutil.Error:
        return ""


def is_below(process: psutil.Process, pids: Collection[int]) -> bool:
    """Whether one of these processes has started a process, or what has started it."""
    try:
        return any(parent.pid in pids for parent in process.parents())
    except psutil.Error:
        return False


def is_host(name: str) -> bool:
    """Whether a process of this name is a host of a run."""
    return name.startswith(("part ", "shard ", "backup "))


def marked(mark: str) -> list[psutil.Process]:
    """Returns the processes that carry a storm's mark, whoever their parent is."""
    found = []
    for process in psutil.process_iter():
        try:
            carries = process.environ().get(MARK) == mark
        except (psutil.Error, OSError):  # it has just ended, or belongs to somebody else
            continue
        if carries and process.pid != os.getpid() and "resource_tracker" not in " ".join(_command(process)):
            found.append(process)
    return found


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []
