"""What a storm costs and leaves: memory of every process, and processes, segments and files after a run."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from tests.storm.processes import is_host, marked, name_of

SHARED_MEMORY: Final = Path("/dev/shm")
SETTLED_S: Final = 6.0
"""A process has what it needs after so long, and so much processor time; then its memory shall be flat."""

SETTLED_CPU_S: Final = 2.0
"""Of processor time: on a machine that does much else, imports alone take longer than that."""

MOST_GROWTH: Final = 48 << 20
"""Bytes that a process may take from then on."""

MORE_DESCRIPTORS: Final = 24
"""That a process may have open between two runs, beside those that it had at first."""

_CORES: Final = f"partita-cores-{os.getuid()}"
"""Folder of the locks by which workers of a user share the cores; it outlives them."""

_MIB: Final = 1 << 20


@dataclass
class Life:
    """The memory of one process, in bytes: when it had settled, and the largest since."""

    began: float
    first: int = 0
    largest: int = 0
    seen: float = 0.0


@dataclass
class Census:
    """Samples of the memory of processes.

    Attributes:
        lives: by role and process.
    """

    lives: dict[tuple[str, int, float], Life] = field(default_factory=dict)
    _next: float = 0.0
    _descriptors: dict[tuple[str, int], int] = field(default_factory=dict)

    def sample(self, processes: Iterable[tuple[str, psutil.Process]], *, every_s: float = 0.5) -> None:
        """Takes a sample of each, unless the last one was just now."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + every_s
        for role, process in processes:
            try:
                rss, began, used = process.memory_info().rss, process.create_time(), process.cpu_times()
            except psutil.Error:
                continue
            life = self.lives.setdefault((role, process.pid, began), Life(now))
            life.seen = now
            if now - life.began >= SETTLED_S and used.user + used.system >= SETTLED_CPU_S:
                life.first = life.first or rss
                life.largest = max(life.largest, rss)

    def more_descriptors(self, pids: Mapping[str, int]) -> list[str]:
        """Names processes that have more files and sockets open between two runs than at first."""
        found = []
        for name, pid in pids.items():
            try:
                n = psutil.Process(pid).num_fds()
            except psutil.Error:
                continue
            first = self._descriptors.setdefault((name, pid), n)
            found += [f"{name} has {n} descriptors, and had {first}"] if n > first + MORE_DESCRIPTORS else []
        return found

    def grown(self) -> list[str]:
        """Names the processes whose memory is not flat. The storm's own holds the logs that it compares."""
        lives = ((place, life) for place, life in self.lives.items() if place[0] != "storm")
        more = {place: life.largest - life.first for place, life in lives}
        return [f"a {role} took {n >> 20} MiB more" for (role, _, _), n in more.items() if n > MOST_GROWTH]

    def growth(self) -> dict[str, tuple[float, float, float]]:
        """For each role, in MiB: the first process, the last one, and the most that one of them grew."""
        found: dict[str, tuple[float, float, float]] = {}
        for (role, _, _), life in self.lives.items():
            if life.first:
                first, _, most = found.get(role, (life.first / _MIB, 0.0, 0.0))
                grown = (life.largest - life.first) / _MIB
                found[role] = first, life.largest / _MIB, max(most, grown)
        return found


def segments() -> set[str]:
    """Names of the shared memory of this machine."""
    return {entry.name for entry in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set()


def left_behind(
    mark: str, spared: Collection[int], temporary: Path, before: set[str], *, within_s: float
) -> list[str]:
    """Names what a run has left, after waiting at most so long for what is on its way out.

    Args:
        mark: of everything that the storm has started.
        spared: processes that may stay, hosts below them excepted.
        temporary: folder for the temporary files of the run.
        before: the shared memory before the run.
        within_s: seconds.
    """
    until = time.monotonic() + within_s
    while True:
        processes = [one for one in marked(mark) if is_host(name_of(one)) or one.pid not in spared]
        found = [f"process {one.pid} ({name_of(one)})" for one in processes if name_of(one)]
        found += [f"{path}" for path in sorted(temporary.iterdir()) if path.name != _CORES]
        found += [f"{SHARED_MEMORY}/{name}" for name in sorted(segments() - before) if "partita" in name]
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.1)
