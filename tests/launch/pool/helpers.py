"""`partita` in processes of their own, whose lines can be waited for."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from partita.engine.transport import Keyring

DEADLINE_S = 90.0
"""Of whatever has no limit of its own: a loaded machine imports for a while."""


class Program:
    """`partita ...`, with all it prints in `said`. Use it as a context manager: it ends with SIGTERM."""

    def __init__(
        self,
        *arguments: str,
        inside: Sequence[str] = (),
        env: dict[str, str] | None = None,
        program: Sequence[str] = ("-m", "partita.engine.cli"),
    ) -> None:
        """Starts the command, or another program of Python; `inside` is put before it to run it elsewhere."""
        self.said: list[str] = []
        self._text = b""
        self._process = subprocess.Popen(
            [*inside, sys.executable, *program, *arguments],
            env={**os.environ, "COLUMNS": "200", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def output(self) -> str:
        """All lines so far."""
        return "\n".join(self.said)

    def wait_for(self, *texts: str, within_s: float = DEADLINE_S) -> float:
        """Reads up to a line that has all these texts; returns the seconds that took."""
        began, seen = time.monotonic(), 0
        while True:
            for line in self.said[seen:]:
                if all(text in line for text in texts):
                    return time.monotonic() - began
            seen = len(self.said)
            left_s = began + within_s - time.monotonic()
            assert left_s > 0, f"no {texts} within {within_s} s, only:\n{self.output}"
            assert self.read(left_s) or len(self.said) > seen, f"ended without {texts}:\n{self.output}"

    def end(self) -> int:
        """Waits for its end, and returns its exit code."""
        until = time.monotonic() + DEADLINE_S
        while self.read(until - time.monotonic()):
            assert time.monotonic() < until, f"it does not end:\n{self.output}"
        return self._process.wait(DEADLINE_S)

    def signal(self, number: int) -> None:
        """Sends a signal to the process alone."""
        self._process.send_signal(number)

    def hosts(self) -> dict[str, psutil.Process]:
        """The processes of hosts below this one, by name."""
        found = psutil.Process(self.pid).children(recursive=True)
        return {p.name(): p for p in found if p.name().startswith(("part ", "shard "))}

    def read(self, timeout_s: float) -> bool:
        """Reads what is there, after waiting so long; returns False at the end of the output."""
        assert self._process.stdout is not None
        if not self._selector.select(max(timeout_s, 0.0)):
            return True
        data = os.read(self._process.stdout.fileno(), 1 << 16)
        *lines, self._text = (self._text + data).split(b"\n")
        self.said += [line.decode("utf-8", "replace") for line in lines]
        return bool(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._selector.close()
        assert self._process.stdout is not None
        self._process.stdout.close()


def new_keys(folder: Path) -> Path:
    """Makes a folder in which pool, worker and client trust one another."""
    keyring = Keyring(folder)
    for role in ("pool", "worker", "client"):
        keyring.authorise(role, keyring.new(role).public, role)  # type: ignore[arg-type]
    return folder


@contextmanager
def pool_of(keys: Path, workers: int, *options: str) -> Iterator[tuple[str, Program, list[Program]]]:
    """Serves a pool on loopback, with workers that have joined it."""
    with Program("pool", "serve", "tcp://127.0.0.1:*", "--keys", str(keys)) as serve:
        serve.wait_for("serves a pool at")
        address = serve.said[-1].split()[4]
        started: list[Program] = []
        try:
            for number in range(workers):
                started.append(worker(address, keys, f"w{number}", *options))
            for number in range(workers):
                serve.wait_for(f"worker 'w{number}' joined")
            yield address, serve, started
        finally:
            for one in started:
                one.__exit__(None, None, None)


def worker(address: str, keys: Path, name: str, *options: str, inside: Sequence[str] = ()) -> Program:
    """Starts a worker."""
    return Program("worker", address, "--keys", str(keys), "--name", name, *options, inside=inside)
