"""A page and what it shows: the server as a process, fed with the records of a run of many machines.

The records are invented, and as many as such a run writes each second (`tests/watch/invented.py`): so many
hosts do not fit on the machine that is measured, and the page reads nothing else of a run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from benchmarks._worker import Worker
from partita.engine.watch.records import encode
from tests.watch.invented import Invented, stream, wide_plan

_FIRST_S: Final = 5
"""Seconds of the run after which all hosts are ready: what comes until then is written at once."""


class Feed:
    """The records of a run by the second, written to a file while `writing` lasts."""

    def __init__(self, path: Path, *, machines: int, seconds: int) -> None:
        """Makes the records of so many seconds, and writes those of the start."""
        self._path = path
        self._lines: dict[int, list[bytes]] = defaultdict(list)
        for record in stream(wide_plan(machines), Invented(replicas=1, seconds=float(seconds), ends=False)):
            self._lines[int(record.at_s)].append(encode(record))
        self._next, self._last = 0, seconds
        while self._next <= _FIRST_S:
            self._write()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Writes a second's records each second while the block lasts.

        Raises:
            RuntimeError: the records have come to their end.
        """
        over = threading.Event()

        def write() -> None:
            while not over.wait(1.0):
                self._write()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield
        finally:
            over.set()
            writer.join()
        if self._next > self._last:
            raise RuntimeError(f"{self._last} seconds of records are over; ask for fewer rounds")

    def _write(self) -> None:
        with self._path.open("ab") as file:
            file.write(b"".join(self._lines.pop(self._next, [])))
        self._next += 1


class Page:
    """The server of a stream, and open tabs. Use it as a context manager."""

    def __init__(self, path: Path, *, tabs: int) -> None:
        """Starts the server, and opens the tabs."""
        command = [sys.executable, "-m", "partita.engine.page", str(path)]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self._server.stdout is not None
        self._tabs = Worker("_page_tabs", self._server.stdout.readline().strip())
        self._tabs.call("open", tabs)
        self._processes: Final = [psutil.Process(pid) for pid in (self._server.pid, self._tabs.pid)]

    def rest(self) -> None:
        """Stops both processes, as if there were none."""
        for process in self._processes:
            os.kill(process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Lets both processes go on."""
        for process in self._processes:
            os.kill(process.pid, signal.SIGCONT)

    def busy_s(self) -> tuple[float, float]:
        """Returns the processor time of the server and of the tabs so far, in seconds."""
        times = [process.cpu_times() for process in self._processes]
        return times[0].user + times[0].system, times[1].user + times[1].system

    def counted(self) -> dict[str, float]:
        """Returns what the tabs have received; see `Tabs.counted`."""
        found: dict[str, float] = self._tabs.call("counted")
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.resume()
        self._tabs.__exit__(kind, error, trace)
        self._server.terminate()
        self._server.communicate()
