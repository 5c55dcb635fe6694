"""The drivers that are compared, each a line: a name, and the driver of a learning rate.

A learning rate is chosen in trials with starts that are used for nothing else: the same rates and trials for
each driver.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import inf
from statistics import median
from typing import TypeVar

import numpy as np

from examples.reproduce.courses import Course, course
from examples.reproduce.two_functions import Problem
from examples.reproduce.virtual import Hosts
from partita.engine import (
    ADMM,
    EASGD,
    LBFGS,
    SGD,
    AllReduce,
    Bounded,
    Codistillation,
    Compensated,
    Damped,
    DecoupledDiLoCo,
    DiLoCo,
    Downpour,
    DynamicAveraging,
    FedAvg,
    LocalSGD,
    ParameterAveraging,
    Sandblaster,
    Server,
)
from partita.engine.drivers import Driver
from partita.engine.parameters.compression import TopK

T = TypeVar("T")

REPLICAS = 6
RATES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
TRIALS = (1000, 1001, 1002)
"""Seeds of the trials of a rate, whose median counts: too high a rate can be the fastest of one trial."""

CONTENDERS: dict[str, Callable[[float], Driver]] = {
    "Downpour": lambda r: Downpour(replicas=REPLICAS, optimizer=SGD(r)),
    "Downpour, Damped": lambda r: Downpour(replicas=REPLICAS, optimizer=SGD(r), staleness=Damped()),
    "Downpour, Compensated": lambda r: Downpour(
        replicas=REPLICAS, optimizer=SGD(r), staleness=Compensated(2.0, adaptive=True)
    ),
    "Downpour, Bounded(2)": lambda r: Downpour(replicas=REPLICAS, optimizer=SGD(r), staleness=Bounded(2)),
    "Downpour, TopK(0.01)": lambda r: Downpour(replicas=REPLICAS, optimizer=SGD(r), compress=TopK(0.01)),
    "EASGD(every=8)": lambda r: EASGD(replicas=REPLICAS, optimizer=SGD(r), every=8),
    "AllReduce": lambda r: AllReduce(replicas=REPLICAS, optimizer=SGD(r)),
    "AllReduce, 2 backup workers": lambda r: AllReduce(
        replicas=REPLICAS, optimizer=SGD(r), by=Server(), backup_workers=2
    ),
    "AllReduce, TopK(0.01)": lambda r: AllReduce(replicas=REPLICAS, optimizer=SGD(r), compress=TopK(0.01)),
    "LocalSGD(every=8)": lambda r: LocalSGD(replicas=REPLICAS, optimizer=SGD(r), every=8),
    "DiLoCo(every=8)": lambda r: DiLoCo(replicas=REPLICAS, optimizer=SGD(r), every=8),
    "DecoupledDiLoCo(every=8)": lambda r: DecoupledDiLoCo(
        replicas=REPLICAS, optimizer=SGD(r), every=8, fragments=8, quorum=REPLICAS // 2
    ),
    "DynamicAveraging(every=8)": lambda r: DynamicAveraging(
        replicas=REPLICAS, optimizer=SGD(r), every=8, delta=1.0
    ),
    "ParameterAveraging, at the end": lambda r: ParameterAveraging(replicas=REPLICAS, optimizer=SGD(r)),
    "FedAvg, 6 clients": lambda r: FedAvg(
        replicas=REPLICAS, optimizer=SGD(r), clients=REPLICAS, fraction=1.0
    ),
    "Codistillation, 2 groups": lambda r: Codistillation(
        replicas=REPLICAS, optimizer=SGD(r), groups=2, every=8, burn_in=16
    ),
    "ADMM(every=8)": lambda r: ADMM(replicas=REPLICAS, optimizer=SGD(REPLICAS * r), every=8),
    "Sandblaster L-BFGS": lambda r: Sandblaster(replicas=REPLICAS, method=LBFGS()),
}


def rate_of(make: Callable[[float], Driver], problem: Problem, hosts: Hosts, *, target: float) -> float:
    """Returns the learning rate that reaches the target first in the median of the trials."""
    best, best_s = RATES[0], inf
    for rate in RATES[:1] if make(RATES[0]).evaluates else RATES:
        until_s = min(best_s, LONGEST * hosts.step_s)
        with np.errstate(over="ignore", invalid="ignore"):  # at too high a rate
            trials = (
                measured(make(rate), problem, hosts, seed=seed, target=target, until_s=until_s)
                for seed in TRIALS
            )
            took_s = median(trial.reached_s(target) for trial in trials)
        if took_s < best_s:
            best, best_s = rate, took_s
    return best


LONGEST = 1000
"""Mean times of a minibatch after which a run counts as one that never gets there."""


def measured(
    driver: Driver, problem: Problem, hosts: Hosts, *, seed: int, target: float, until_s: float = 0.0
) -> Course:
    """Plays a run, for `LONGEST` if not given another limit."""
    until_s = until_s or LONGEST * hosts.step_s
    return course(driver, problem, hosts, seed=seed, target=target, until_s=until_s)


def in_processes(work: Callable[[str], T], names: Sequence[str], *, processes: int = 2) -> Iterator[T]:
    """Yields what some work finds for each driver, in their order; processes share it."""
    if len(names) == 1:
        yield work(names[0])
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(work, names)
