"""Keeps the hosts of a worker to cores of their own, beside those of other workers on the same machine.

A worker locks a file for each core that it gives away, so that no other worker of this user gives away the
same one; the kernel releases the locks of a worker that dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Final

from partita.engine.launch.cores import physical_cores, shares

_AGAIN_S: Final = 2.0
"""Seconds after which threads that have begun meanwhile are looked for, and cores of other workers."""


class HostCores:
    """The cores of a worker's hosts. Belongs to one thread."""

    def __init__(self, folder: Path | None = None) -> None:
        """Gives no cores away yet.

        Args:
            folder: of the locks; one of this user in the temporary folder if not given.
        """
        processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        self._cores = physical_cores(processors)
        self._folder = folder or Path(tempfile.gettempdir()) / f"partita-cores-{os.getuid()}"
        self._wanted: dict[Hashable, int] = {}
        self._own: dict[Hashable, frozenset[int]] = {}
        self._locks: dict[frozenset[int], int] = {}
        self._applied: dict[Hashable, frozenset[int]] = {}
        self._applied_at = float("-inf")

    @property
    def own(self) -> Mapping[Hashable, frozenset[int]]:
        """The processors that a host has to itself, by host."""
        return self._own

    def take(self, host: Hashable, cores: int) -> None:
        """Gives a host cores of its own, if so many are free."""
        self._wanted[host] = cores
        others = [core for core in self._cores if core not in self._locks and not self._lock(core)]
        self._own = shares(self._cores, self._wanted, self._own, others)
        self._release()

    def give_back(self, host: Hashable) -> None:
        """Takes the cores of a host that has ended."""
        for known in (self._wanted, self._own, self._applied):
            known.pop(host, None)
        self._release()

    def apply(self, pids: Mapping[Hashable, int]) -> None:
        """Restricts the threads of hosts to their own cores and those that no host has.

        Args:
            pids: process id of each host that runs.
        """
        now = time.monotonic()
        if now - self._applied_at < _AGAIN_S and self._own.keys() & pids.keys() <= self._applied.keys():
            return
        self._applied_at = now
        everything = frozenset().union(*self._cores)
        for host, processors in self._allowed().items():
            if host in pids:
                if processors != everything or self._applied.get(host, everything) != everything:
                    _restrict(pids[host], processors)
                self._applied[host] = processors

    def close(self) -> None:
        """Gives all cores back."""
        for host in list(self._wanted):
            self.give_back(host)

    def _allowed(self) -> dict[Hashable, frozenset[int]]:
        """The processors of each host with cores of its own: these, and those that no host has."""
        own = frozenset().union(*self._own.values())
        free = [core for core in self._cores if not core & own]
        spare = frozenset().union(*(core for core in free if self._is_free(core)))
        return {host: processors | spare for host, processors in self._own.items()}

    def _is_free(self, core: frozenset[int]) -> bool:
        """Returns whether no other worker has given a core away."""
        if not self._lock(core):
            return False
        os.close(self._locks.pop(core))
        return True

    def _lock(self, core: frozenset[int]) -> bool:
        """Locks a core; returns False if another worker has it. Where there can be no locks, all are free."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            found = self._folder.lstat()
            if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
                raise PermissionError(f"{self._folder} belongs to somebody else")
            lock = os.open(self._folder / f"core-{min(core)}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            lock = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        else:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                return False
        self._locks[core] = lock
        return True

    def _release(self) -> None:
        """Unlocks the cores that no host of this worker has."""
        own = frozenset().union(*self._own.values())
        for core in [core for core in self._locks if not core & own]:
            os.close(self._locks.pop(core))


def _restrict(pid: int, processors: frozenset[int]) -> None:
    """Restricts all threads of a process; one that has just ended is left out."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(thread), processors)
