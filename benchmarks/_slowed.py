"""Processes that are slowed down: stopped by SIGSTOP until their share of a core's time is due again.

`Slowed` does it by a process of its own (this module), so that nobody's work keeps it from being on time.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from partita.engine.protocol.names import part_indices, shard_index

SLICE_S: Final = 0.0005
"""For so long a process runs at a time. Then it is stopped for as long as that costs at its share."""


def hosts() -> dict[str, int]:
    """The processes that this one has started as hosts of a run, by the host's name."""
    found = {}
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            name = child.name()
            if part_indices(name) is not None or shard_index(name) is not None:
                found[name] = child.pid
    return found


def on_core_s(pid: int | str) -> float:
    """Time that the threads of a process were on a core: the first number of each `schedstat`."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return 1e-9 * sum(int(thread.read_text().split()[0]) for thread in threads)


class Slowed:
    """Slows hosts from `begin` on until `end`, or until it is left. Use it as a context manager.

    Args:
        factors: by the host's name: 10 leaves it a tenth of a core's time.
    """

    def __init__(self, factors: Mapping[str, float]) -> None:
        self._factors = factors
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """The hosts are there: looks for their processes, and slows them."""
        if self._factors:
            running = hosts()
            slowed = [f"{running[name]}:{factor}" for name, factor in self._factors.items()]
            command = [sys.executable, "-m", "benchmarks._slowed", *slowed]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE)

    def end(self) -> None:
        """All processes run again."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def slow(factors: Mapping[int, float]) -> None:
    """Until standard input ends. `factors` by process."""
    began = time.monotonic()
    used = {pid: on_core_s(pid) for pid in factors}
    due = [(began, pid) for pid in factors]
    for pid in factors:
        os.kill(pid, signal.SIGSTOP)
    try:
        while not select.select([sys.stdin], [], [], max(due[0][0] - time.monotonic(), 0.0))[0]:
            _, pid = heapq.heappop(due)
            os.kill(pid, signal.SIGCONT)
            time.sleep(SLICE_S)
            os.kill(pid, signal.SIGSTOP)
            heapq.heappush(due, (began + (on_core_s(pid) - used[pid]) * factors[pid], pid))
    except ProcessLookupError:
        pass  # a run that ends takes its processes with it
    finally:
        for pid in factors:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


if __name__ == "__main__":
    pairs = (pair.split(":") for pair in sys.argv[1:])
    slow({int(pid): float(factor) for pid, factor in pairs})
