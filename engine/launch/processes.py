"""Hosts as processes on this machine, supervised: they die with their parent and leave nothing behind.

A process gets its key pair and its coordinator's address through its standard input: no secret is ever in a
command line, in the environment or on disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Final

import msgspec

from partita.engine.launch.launcher import Launcher
from partita.engine.protocol.messages import Peer
from partita.engine.protocol.names import COORDINATOR
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.sockets import LOOPBACK
from partita.engine.transport.zeromq import ZmqMailbox

_LOOPBACK: Final = re.compile(r"tcp://127\.\d+\.\d+\.\d+:(\*|\d+)", flags=re.ASCII)


class Bootstrap(msgspec.Struct, frozen=True):
    """What a new process is told. Holds a secret: never print it."""

    name: str
    incarnation: int
    public_key: str
    secret_key: str
    coordinator: Peer
    parent: int
    path: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Bootstrap({self.name}, {self.incarnation})"


class ProcessLauncher(Launcher):
    """Starts each host as `python -m partita.engine.launch.worker NAME`, talking ZeroMQ over loopback."""

    def __init__(self, *, listen: str | None = None) -> None:
        """Opens the coordinator's mailbox.

        Args:
            listen: its endpoint, `tcp://127.0.0.1:PORT`; any free port if not given.

        Raises:
            ValueError: the endpoint is none, or not of this machine's loopback.
            OSError: it is in use.
        """
        super().__init__()
        if listen is not None and not _LOOPBACK.fullmatch(listen):
            raise ValueError(
                f"'{listen}' is no endpoint for hosts that are all on this machine; "
                "write tcp://127.0.0.1:PORT, or leave it out"
            )
        self._keys = KeyPair.generate()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.mailbox = ZmqMailbox(self._keys, endpoint=listen or LOOPBACK)

    def pid(self, name: str) -> int:
        """The process of a host."""
        return self._processes[name].pid

    def _start(self, name: str, incarnation: int) -> str:
        keys = KeyPair.generate()
        bootstrap = Bootstrap(
            name,
            incarnation,
            keys.public,
            keys.secret,
            Peer(COORDINATOR, 0, self.mailbox.endpoint, self.mailbox.public_key),
            os.getpid(),
            tuple(sys.path),
        )
        process = subprocess.Popen(
            # Without -P, modules of the current folder would hide those of others. The name is for people.
            [sys.executable, "-P", "-m", "partita.engine.launch.worker", name],
            stdin=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C in the terminal is the parent's business alone
        )
        assert process.stdin is not None
        self._processes[name] = process
        # Where it has died already, `ended` will say so.
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(msgspec.json.encode(bootstrap))
        return keys.public

    def ended(self) -> list[tuple[str, int, str]]:
        """Processes that have exited or were killed."""
        found = []
        for name in list(self._processes):
            code = self._processes[name].poll()
            if code is not None and name in self._running:
                del self._processes[name]
                found.append((name, self._running[name].incarnation, _reason(code)))
        return found

    def _started(self) -> list[str]:
        return list(self._processes)

    def _stop(self, names: Iterable[str], *, patience_s: float = 0.0) -> None:
        ending = [self._processes.pop(name) for name in names if name in self._processes]
        until = time.monotonic() + patience_s
        try:
            for process in ending:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(until - time.monotonic(), 0.0))
        finally:  # a Ctrl-C in the waiting must not let any of them live
            for process in ending:
                process.kill()
            for process in ending:
                process.wait()


def _reason(code: int) -> str:
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process exited with {code}"
