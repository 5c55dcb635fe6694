"""A worker that this process has started by a command, here or on another machine, and that ends with it.

The command runs `partita worker --stdin`. All that the worker has to know, its secret key too, goes through
its standard input and never into a command line; the worker ends when that input closes, and so when this
process ends, in whatever way, or when the connection of a command like ssh breaks.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from partita.engine.protocol.pool.resources import Resources

COMMAND: Final = ("-m", "partita.engine.cli", "worker", "--stdin")
"""Arguments of Python on the worker's machine."""

_PRINTED_S: Final = 1.0  # for the last lines, once the command has ended
_KEPT: Final = 8  # last lines, for a sentence about its end


class WorkerBootstrap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that a worker has to know. Holds a secret: never print it.

    Args:
        pool: address of the pool.
        pool_key: public key of the pool.
        public_key, secret_key: the worker's pair.
        name: of the worker.
        resources: what its hosts may use up; of what is 0, as much as is found there.
        address: its own address; "" for the one that leads to the pool.
    """

    pool: str
    pool_key: str
    public_key: str
    secret_key: str
    name: str
    resources: Resources = Resources()
    address: str = ""

    def __repr__(self) -> str:
        return f"WorkerBootstrap({self.name})"


class SpawnedWorker:
    """A worker's process, or that of the command which leads to it. Belongs to one thread."""

    def __init__(
        self, command: Sequence[str], bootstrap: WorkerBootstrap, *, title: str, log: Callable[[str], object]
    ) -> None:
        """Starts the command and sends the bootstrap.

        Args:
            command: ends in `COMMAND`.
            bootstrap: for the worker.
            title: begin of each line that the worker prints.
            log: shows a line. From any thread.

        Raises:
            OSError: the command cannot be started.
        """
        self.title, self._log = title, log
        self._last: deque[str] = deque(maxlen=_KEPT)
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C in the terminal is this process's business alone
        )
        self._reader = threading.Thread(target=self._read, name=f"output of {title}", daemon=True)
        self._reader.start()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `poll` will say why
            self._process.stdin.write(msgspec.json.encode(bootstrap) + b"\n")
            self._process.stdin.flush()

    def poll(self) -> int | None:
        """Returns the exit status of the command, if it has ended."""
        return self._process.poll()

    @property
    def last_line(self) -> str:
        """The last line that the command has printed, once it has ended."""
        self._reader.join(_PRINTED_S)
        return next((line for line in reversed(self._last) if line.strip()), "")

    def release(self) -> None:
        """Closes the worker's input, by which it ends."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def join(self, patience_s: float) -> None:
        """Waits until the command has ended, and kills it if that takes longer."""
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_PRINTED_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                text = line.decode("utf-8", "replace").rstrip()
                self._last.append(text)
                self._log(f"[{self.title}] {text}")


def own_command() -> list[str]:
    """Returns the command of a worker on this machine."""
    return [sys.executable, *COMMAND]


def end_all(workers: Iterable[SpawnedWorker], patience_s: float) -> None:
    """Ends workers at the same time, and kills the commands of those that take longer."""
    ending = list(workers)
    for one in ending:
        one.release()
    until = time.monotonic() + patience_s
    for one in ending:
        one.join(max(until - time.monotonic(), 0.0))
