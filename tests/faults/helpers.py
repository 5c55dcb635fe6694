"""Helpers of the tests of faults: a witness of a run in this process, and the command as a process of its
own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self, TypeAlias

import psutil

from partita.engine.protocol.coordinator_effects import Progress
from partita.engine.protocol.names import COORDINATOR, backup_index, part_indices, shard_index
from partita.engine.run.metrics import Metrics
from partita.engine.run.phases import Show

DEADLINE_S = 60.0


def hosts_of(pid: int) -> dict[str, psutil.Process]:
    """The processes of a run's hosts, by the host's name."""
    found = {}
    for process in psutil.Process(pid).children(recursive=True):
        try:
            name = process.name()
        except psutil.Error:  # it has just ended
            continue
        if any(index(name) is not None for index in (part_indices, shard_index, backup_index)):
            found[name] = process
    return found


Seen: TypeAlias = Progress | str
"""An event that a run displays: a report of a part or of a batch method, or a line."""


class Witness:
    """Stands where the display is: notes what a run says, and acts when it has come so far."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._plans: list[tuple[Callable[[Seen], bool], Callable[[], None]]] = []

    def when(self, condition: Callable[[Progress], bool], act: Callable[[], None]) -> None:
        """Acts once, at the first report that fulfils the condition; plans are for one after another."""
        self._plans.append((lambda seen: isinstance(seen, Progress) and condition(seen), act))

    def when_done(self, iterations: int, act: Callable[[], None]) -> None:
        """Acts once, when a batch method has done so many iterations."""
        self._plans.append(
            (
                lambda seen: (
                    isinstance(seen, Progress) and seen.source == COORDINATOR and seen.step >= iterations
                ),
                act,
            )
        )

    def when_said(self, text: str, act: Callable[[], None]) -> None:
        """Acts once, at the first line with this text."""
        self._plans.append((lambda seen: isinstance(seen, str) and text in seen, act))

    @property
    def texts(self) -> list[str]:
        """The lines that a user would have read."""
        return [text for text in self.seen if isinstance(text, str)]

    def index(self, text: str) -> int:
        """Index in `seen` of the first line with this text."""
        found = [n for n, seen in enumerate(self.seen) if isinstance(seen, str) and text in seen]
        assert found, f"no text contains {text!r}: {self.texts}"
        return found[0]

    def reports(self, name: str, *, start: int = 0, stop: int | None = None) -> list[int]:
        """The steps that a part reported, in this slice of `seen`."""
        return [p.step for p in self.seen[start:stop] if isinstance(p, Progress) and p.source == name]

    # What a run asks of a display.

    def __call__(self, show: Show, *, stream: object = None) -> Self:
        return self

    def follow(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def update(self, progress: Progress) -> None:
        self._metrics.add(progress)
        self._see(progress)

    def phase(self, text: str) -> None:
        """Shows nothing: how long a phase lasts is chance."""

    def draw(self) -> None:
        self._metrics.latest()

    def print_line(self, text: str) -> None:
        self._see(text)

    def _see(self, what: Seen) -> None:
        self.seen.append(what)
        if self._plans and self._plans[0][0](what):
            self._plans.pop(0)[1]()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            assert not self._plans, f"the run was over before it came so far: {self.texts}"


@contextmanager
def sigint(handler: Callable[[int, FrameType | None], Any] | signal.Handlers) -> Iterator[None]:
    """Lets this process, and those that it starts, treat SIGINT so, whatever its own parent did."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Command:
    """`partita ...` in a process group of its own, as a shell would start it. Use it as a context manager.

    Args:
        arguments: of the command.
        folder: where it runs.
        in_background: it ignores SIGINT, as a script's job in the background does.
    """

    def __init__(self, *arguments: str, folder: Path, in_background: bool = False) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.output = folder / "output.txt"
        self.said: list[str] = []
        handler = signal.SIG_IGN if in_background else signal.default_int_handler
        with self.output.open("w") as output, sigint(handler):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "partita.engine.cli", *arguments],
                cwd=folder,
                env={**os.environ, "TMPDIR": str(self.temporary)},
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
                process_group=0,
            )

    @property
    def hosts(self) -> dict[str, psutil.Process]:
        """Current hosts of the run."""
        return hosts_of(self._process.pid)

    @property
    def descendants(self) -> list[psutil.Process]:
        """Current descendants of the process, hosts or not."""
        return psutil.Process(self._process.pid).children(recursive=True)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def wait_for(self, text: str) -> None:
        """Reads standard error up to a line with this text."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said.append(line.rstrip("\n"))
            if text in line:
                return
        raise AssertionError(f"it ended without saying {text!r}: {self.said}")

    def lines(self) -> Iterator[str]:
        """The lines of standard error, as they come, until it ends."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said.append(line.rstrip("\n"))
            yield line

    def interrupt(self) -> None:
        """Ctrl-C in its terminal."""
        os.killpg(self._process.pid, signal.SIGINT)

    def terminate(self) -> None:
        """SIGTERM to the command alone."""
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL to the command alone."""
        self._process.kill()

    def wait(self, seconds: float) -> int:
        """Waits for its end; returns its exit code. Raises TimeoutError."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None

    def end(self) -> tuple[int, float]:
        """Waits; returns its exit code, and the seconds that it took."""
        assert self._process.stderr is not None
        began = time.monotonic()
        self.said += self._process.stderr.read().splitlines()
        code = self._process.wait(DEADLINE_S)
        return code, time.monotonic() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stderr is not None
        self._process.stderr.close()
