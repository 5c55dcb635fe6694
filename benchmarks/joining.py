"""The time until a replica that joins in mid-run is at work: from its first launch to its first report.

    python -m benchmarks.joining [--rounds N] [--machines N]

Two replicas of the digits example train under an elastic Downpour. Replica 1 is killed again and again,
leaves and comes back; the other one goes on. The code is warm: the first start, which may compile, is left
out.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from functools import partial
from typing import Final
from unittest import mock

import psutil

from benchmarks._machine import describe
from examples.digits import data, network
from partita.engine import Adagrad, Downpour, Interrupted, train
from partita.engine.launch.processes import ProcessLauncher
from partita.engine.protocol.coordinator_effects import Progress, Timeouts
from partita.engine.protocol.messages import Peer
from partita.engine.protocol.names import part_indices
from partita.engine.run.metrics import Metrics
from partita.partitioner import Cluster, partition

AT_WORK_S: Final = 1.0
"""Seconds of work of the replica before it is killed."""


class Watch:
    """Kills replica 1 when it has been at work for a while, and notes how long its next start takes."""

    def __init__(self, rounds: int) -> None:
        self.found: list[float] = []
        self._rounds = rounds
        self._launched: dict[int, float] = {}  # by incarnation: when its first process was launched
        self._reported: dict[int, float] = {}
        self._launch, self._add = ProcessLauncher.launch, Metrics.add

    def launch(self, launcher: ProcessLauncher, name: str, incarnation: int) -> Peer:
        """Launches a host."""
        if (part_indices(name) or (0, 0))[0] == 1:
            self._launched.setdefault(incarnation, time.monotonic())
        return self._launch(launcher, name, incarnation)

    def add(self, metrics: Metrics, progress: Progress) -> None:
        """Takes a report."""
        self._add(metrics, progress)
        if (part_indices(progress.source) or (0, 0))[0] != 1:
            return
        now, newest = time.monotonic(), max(self._launched)
        if newest not in self._reported:
            self._reported[newest] = now
            if len(self._reported) > 1:
                self.found.append(now - self._launched[newest])
        elif len(self.found) == self._rounds:
            raise KeyboardInterrupt
        elif now - self._reported[newest] > AT_WORK_S:
            self._reported[newest] = now
            _kill("part 1.0")


def _kill(name: str) -> None:
    for process in psutil.Process(os.getpid()).children(recursive=True):
        if process.name() == name:
            process.kill()


def main() -> None:
    """Measures, and prints a line for each start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--machines", type=int, default=1)
    given = parser.parse_args()
    watch, training = Watch(given.rounds), data()[0]
    plan = partition(network(), Cluster.local(machines=given.machines), batch=32)
    driver = Downpour(elastic=(1, 2), optimizer=Adagrad(0.01))
    timeouts = partial(Timeouts, deaths=1, wave_s=0.5)
    with (
        mock.patch.object(ProcessLauncher, "launch", lambda *args: watch.launch(*args)),
        mock.patch.object(Metrics, "add", lambda *args: watch.add(*args)),
        mock.patch.object(sys.modules["partita.engine.run.train"], "Timeouts", timeouts),
        contextlib.suppress(KeyboardInterrupt, Interrupted),
    ):
        train(plan, training, driver=driver, epochs=1_000_000, show="nothing")
    print(describe())
    for seconds in watch.found:
        print(f"first report {seconds:.2f} s after the launch of its first process")
    print(f"median {statistics.median(watch.found):.2f} s; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
