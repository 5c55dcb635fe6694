"""The drivers that are compared, each a line: a name, and the driver of a learning rate.

A learning rate is chosen in a trial with a start that is used for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from examples.reproduce.courses import Course, course
from examples.reproduce.two_functions import Problem
from examples.reproduce.virtual import Hosts
from partita.engine import (
    LBFGS,
    SGD,
    AllReduce,
    Bounded,
    Compensated,
    Damped,
    DiLoCo,
    Downpour,
    LocalSGD,
    Sandblaster,
    Server,
)
from partita.engine.drivers import Driver

REPLICAS = 6
RATES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
TRIAL = 1000
"""Seed of the trials."""

CONTENDERS: dict[str, Callable[[float], Driver]] = {
    "Downpour": lambda r: Downpour(replicas=REPLICAS, optimizer=SGD(r)),
    "Downpour, Damped": lambda r: Downpour(replicas=REPLICAS, optimizer=SGD(r), staleness=Damped()),
    "Downpour, Compensated": lambda r: Downpour(
        replicas=REPLICAS, optimizer=SGD(r), staleness=Compensated(2.0, adaptive=True)
    ),
    "Downpour, Bounded(2)": lambda r: Downpour(replicas=REPLICAS, optimizer=SGD(r), staleness=Bounded(2)),
    "AllReduce": lambda r: AllReduce(replicas=REPLICAS, optimizer=SGD(r)),
    "AllReduce, 2 backup workers": lambda r: AllReduce(
        replicas=REPLICAS, optimizer=SGD(r), by=Server(), backup_workers=2
    ),
    "LocalSGD(every=8)": lambda r: LocalSGD(replicas=REPLICAS, optimizer=SGD(r), every=8),
    "DiLoCo(every=8)": lambda r: DiLoCo(replicas=REPLICAS, optimizer=SGD(r), every=8),
    "Sandblaster L-BFGS": lambda r: Sandblaster(replicas=REPLICAS, method=LBFGS()),
}


def rate_of(make: Callable[[float], Driver], problem: Problem, hosts: Hosts, *, target: float) -> float:
    """Returns the learning rate that reaches the target first in a trial."""
    best, best_s = RATES[0], inf
    for rate in RATES[:1] if make(RATES[0]).evaluates else RATES:
        until_s = min(best_s, LONGEST * hosts.step_s)
        took = measured(make(rate), problem, hosts, seed=TRIAL, target=target, until_s=until_s)
        if took.reached_s(target) < best_s:
            best, best_s = rate, took.reached_s(target)
    return best


LONGEST = 1000
"""Mean times of a minibatch after which a run counts as one that never gets there."""


def measured(
    driver: Driver, problem: Problem, hosts: Hosts, *, seed: int, target: float, until_s: float = 0.0
) -> Course:
    """Plays a run, for `LONGEST` if not given another limit."""
    until_s = until_s or LONGEST * hosts.step_s
    return course(driver, problem, hosts, seed=seed, target=target, until_s=until_s)
