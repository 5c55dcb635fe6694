"""A pool on loopback for the runs of a storm, whose server and workers are killed, too."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from typing import Final

from tests.launch.pool.helpers import new_keys
from tests.storm.processes import Process

WORKERS: Final = 2
_REVIVED_S: Final = 0.3  # between two looks at what has ended
_FIRST_PORT, _LAST_PORT = 20_000, 30_000  # none that the system gives to connections


class StormPool:
    """A server and workers.

    Attributes:
        address: of the server.
        keys: folder of the keys.
        server: the process of the server.
        workers: those of the workers, by name.
    """

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        """Starts all of them, and waits until the workers have joined."""
        folder.mkdir()
        self.keys = new_keys(folder / "keys")
        self._next = 0.0
        self.address = f"tcp://127.0.0.1:{_free_port()}"
        partita, keys = "partita.engine.cli", ("--keys", str(self.keys))
        self.server = Process(folder / "server", partita, "pool", "serve", self.address, *keys, env=env)
        self.workers = {
            name: Process(
                folder / name, partita, "worker", self.address, *keys, "--name", name, *_RESOURCES, env=env
            )
            for name in (f"w{number}" for number in range(WORKERS))
        }
        for process in self.all.values():
            process.start()
        for worker in self.workers.values():
            worker.wait_for("joined the pool as")

    @property
    def all(self) -> dict[str, Process]:
        """The processes, by the name of their role."""
        return {"pool": self.server, **{f"worker {name}": one for name, one in self.workers.items()}}

    def revive(self) -> list[str]:
        """Starts again what has ended, by the same command; returns the names. A server that cannot listen
        ends at once: a run that found none serves the pool itself.
        """
        if time.monotonic() < self._next:
            return []
        self._next = time.monotonic() + _REVIVED_S
        ended = [name for name, process in self.all.items() if not process.is_running]
        for name in ended:
            self.all[name].start()
        return ended

    def close(self) -> None:
        """Ends the workers, then the server."""
        for process in (*self.workers.values(), self.server):
            process.end()


_RESOURCES: Final = ("--resources", "cpu=16")


def _free_port() -> int:
    for port in range(_FIRST_PORT, _LAST_PORT):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("no free port below those that the system gives to connections")
