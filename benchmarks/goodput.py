"""Goodput in real processes: useful replica-seconds over all, while a part is killed once a minute.

    python -m benchmarks.goodput [--seconds N] [--every N] [--replicas N] [--driver NAME ...]

A step is useful if it is in the final parameters: each counts once, however often it was computed. A step of
a replica takes a given time, in which its examples are waited for, so that the replicas do not compete for
the cores of this machine. A short run in peace says how many steps a second replicas do when all of their
time is useful; the goodput of the run under kills is its own rate over that one. Both begin with the first
report.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

import numpy as np
import torch.utils.data

from benchmarks._machine import describe
from benchmarks._slowed import hosts
from partita.engine import AllReduce, DecoupledDiLoCo, DiLoCo, Downpour, Momentum, train
from partita.engine.drivers import Driver
from partita.engine.protocol.coordinator_effects import Progress
from partita.engine.protocol.names import part_indices
from partita.engine.run.metrics import Metrics
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition

EXAMPLES: Final = 256
BATCH: Final = 8
STEP_S: Final = 0.1
"""Seconds of a step at least."""


class Slow(torch.utils.data.Dataset[Any]):
    """Points of two clouds, each of which takes its time to be read."""

    def __len__(self) -> int:
        """The number of points."""
        return EXAMPLES

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Waits, and returns a point and its cloud."""
        time.sleep(STEP_S / BATCH)
        point = np.random.default_rng(index).normal(size=8).astype(np.float32)
        return point + index % 2, index % 2


def network() -> Network:
    """A network whose steps take no time worth measuring."""
    net = Network("clouds")
    scores = Dense(2)(Dense(16, activation="relu")(net.input("point", shape=(8,))))
    net.loss = SoftmaxCrossEntropy()(scores, net.target("cloud"))
    return net


def drivers(replicas: int) -> dict[str, Driver]:
    """The drivers that are compared, by name."""
    sgd = Momentum(0.05)
    return {
        "decoupled-diloco": DecoupledDiLoCo(replicas=replicas, shards=2, every=16, optimizer=sgd),
        "downpour": Downpour(replicas=replicas, shards=2),
        "diloco": DiLoCo(replicas=replicas, every=16, optimizer=sgd),
        "all-reduce": AllReduce(replicas=replicas, optimizer=sgd),
    }


class Clock:
    """Notes the time of the first report and of the last one."""

    def __init__(self) -> None:
        self.first = self.last = 0.0
        self._add = Metrics.add

    def add(self, metrics: Metrics, progress: Progress) -> None:
        """Takes a report."""
        self._add(metrics, progress)
        self.last = time.monotonic()
        self.first = self.first or self.last


class Killer:
    """Kills the process of a random part of this process's run every so often, by its id."""

    def __init__(self, every_s: float, seed: int) -> None:
        self.killed = 0
        self._every_s, self._random, self._over = every_s, random.Random(seed), threading.Event()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Kills until the block ends; the first one after half the time."""
        thread = threading.Thread(target=self._work)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _work(self) -> None:
        wait_s = self._every_s / 2
        while not self._over.wait(wait_s):
            wait_s = self._every_s
            parts = {name: pid for name, pid in hosts().items() if part_indices(name) is not None}
            if parts:
                os.kill(parts[self._random.choice(sorted(parts))], signal.SIGKILL)
                self.killed += 1


@dataclass(frozen=True)
class Rate:
    """Steps that count, and the seconds from the first report to the last.

    Args:
        steps: of all replicas.
        seconds: of the work.
        killed: processes meanwhile.
    """

    steps: int
    seconds: float
    killed: int

    @property
    def per_s(self) -> float:
        """Steps a second."""
        return self.steps / self.seconds


def measure(driver: Driver, *, seconds: float, every_s: float, seed: int = 1) -> Rate:
    """Trains for about so many seconds. `every_s`: seconds between kills; 0: none."""
    plan = partition(network(), Cluster.local(machines=1), batch=BATCH)
    epochs = max(1, round(seconds * driver.replicas * BATCH / STEP_S / EXAMPLES))
    clock, killer = Clock(), Killer(every_s or seconds * 100, seed)
    with mock.patch.object(Metrics, "add", lambda *args: clock.add(*args)), killer.at_work():
        run = train(plan, Slow(), driver=driver, epochs=epochs, show="nothing")
    return Rate(sum(run.steps), clock.last - clock.first, killer.killed)


def main() -> None:
    """Measures, and prints a line for each driver."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--every", type=float, default=60.0)
    parser.add_argument("--replicas", type=int, default=3)
    known = drivers(1)
    parser.add_argument("--driver", nargs="+", choices=list(known), default=["decoupled-diloco"])
    given = parser.parse_args()
    print(describe())
    for name in given.driver:
        driver = drivers(given.replicas)[name]
        peace = measure(driver, seconds=20.0, every_s=0.0)
        found = measure(driver, seconds=given.seconds, every_s=given.every)
        print(
            f"{name:18s} {found.per_s / peace.per_s:6.1%} of {peace.per_s:.1f} steps/s in peace: "
            f"{found.steps} steps in {found.seconds:.0f} s, {found.killed} killed",
            flush=True,
        )


if __name__ == "__main__":
    main()
