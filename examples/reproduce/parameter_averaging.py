"""Parameter averaging beside asynchronous SGD, and what Parallel SGD, ADMM and Downpour send and compute.

    python -m examples.reproduce.parameter_averaging            (about a minute; five seeds)

Each driver's own program is played on digits in virtual time: a minibatch takes a drawn time, and the
parameters take 1 MB on a link of 1 Gbit/s. All replicas together compute the same number of minibatches.

Sources: "Distributed deep learning, part 1: an introduction to distributed training of neural networks",
Skymind, 2016; the report "Parallel and distributed deep learning", 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from examples.reproduce.two_functions import Problem
from examples.reproduce.virtual import Hosts, World
from partita.engine import ADMM, SGD, AllReduce, Downpour, LocalSGD
from partita.engine.drivers import Driver

SEEDS, REPLICAS, STEPS, SPREAD, SLOW = range(5), 8, 64, 0.3, 5.0
PERIODS = (1, 4, 16, 64)
RATE = SGD(0.4)
BASE: dict[str, Any] = {"replicas": REPLICAS, "optimizer": RATE}


@dataclass(frozen=True)
class Found:
    """A run: accuracy on held-out digits, loss, seconds, megabytes, messages, minibatches, age of pushes."""

    accuracy: float
    loss: float
    seconds: float
    megabytes: float
    messages: float
    minibatches: float
    age: float


def played(driver: Driver, hosts: Hosts, *, seed: int, steps: int = STEPS) -> World:
    """Plays until the replicas have done so many minibatches, on average, and their exchanges are over."""
    world = World(driver, PROBLEM, hosts, seed=seed)
    while sum(world.done) < steps * driver.replicas:
        world.play(world.now + 0.05 * hosts.step_s)
    return world


def after_steps(driver: Driver, steps: int = 32) -> Any:
    """Returns the parameters of the first replica after so many steps, and their exchanges."""
    hosts = Hosts()
    world = World(driver, PROBLEM, hosts)
    while world.done[0] < steps:
        world.play(world.now + 0.1 * hosts.step_s)
    world.play(world.now + 0.5 * hosts.step_s)
    return world.replicas[0].vectors["parameters"]


def found(driver: Driver, hosts: Hosts, *, steps: int = STEPS) -> Found:
    """Returns the means over all seeds."""
    rows = []
    for seed in SEEDS:
        world = played(driver, hosts, seed=seed, steps=steps)
        ages = [0] if world.links is None else world.links.shard.ages
        done = sum(world.done)
        ends = PROBLEM.accuracy(world.point), PROBLEM.loss(world.point)
        sent = world.n_bytes / 1e6, world.n_messages
        rows.append((*ends, world.now, *sent, done, fmean(ages)))
    return Found(*(fmean(column) for column in zip(*rows, strict=True)))


PROBLEM = Problem()
USUAL, ONE_SLOW = Hosts(spread=SPREAD), Hosts(spread=SPREAD, slow={REPLICAS - 1: SLOW})


def compare() -> dict[str, bool]:
    """Prints the table of averaging and asynchronous SGD; returns which claims hold."""
    drivers: dict[str, Driver] = {"synchronous": AllReduce(**BASE)}
    drivers |= {f"averaging every {period}": LocalSGD(every=period, **BASE) for period in PERIODS}
    drivers["asynchronous"] = Downpour(replicas=REPLICAS, optimizer=SGD(RATE.learning_rate / REPLICAS))
    drivers["the same, rate x 8"] = Downpour(**BASE)
    print(f"{REPLICAS} replicas, {STEPS} minibatches each; mean of {len(SEEDS)} seeds")
    print(f"{'':20}   loss  accuracy  seconds       MB   age  seconds, one slow")
    rows = {}
    for name, driver in drivers.items():
        one, late = found(driver, USUAL), found(driver, ONE_SLOW)
        rows[name] = one, late
        print(
            f"{name:20} {one.loss:6.3f}  {one.accuracy:8.3f}  {one.seconds:7.1f}  {one.megabytes:7.0f}"
            f"  {one.age:4.1f}  {late.seconds:17.1f}",
            flush=True,
        )
    one, other = (after_steps(drivers[name]) for name in ("synchronous", "averaging every 1"))
    apart = float(np.abs(one - other).max())
    print(f"averaging every step and synchronous SGD: parameters are at most {apart:.0e} apart")
    ages = {n: found(Downpour(replicas=n, optimizer=RATE), USUAL, steps=16).age for n in (2, 4, 8, 16)}
    print("age of a push by replicas: " + ", ".join(f"{n}: {age:.1f}" for n, age in ages.items()))
    losses = [rows[f"averaging every {period}"][0].loss for period in PERIODS]
    often, seldom = (rows[f"averaging every {period}"][0] for period in (1, 16))
    asynchronous, synchronous = rows["asynchronous"], rows["synchronous"]
    same_rate = rows["the same, rate x 8"][0]
    return {
        "averaging in every step is synchronous SGD": apart < 1e-4,
        "longer periods have a higher loss for the same work": losses == sorted(losses),
        "averaging in every step costs time that longer periods save": often.seconds > 1.3 * seldom.seconds,
        "the age of a push grows with the replicas": all(
            n - 1 <= age <= 2 * (n - 1) for n, age in ages.items()
        ),
        "at the rate of synchronous SGD stale gradients do harm": same_rate.loss > 2 * synchronous[0].loss,
        "asynchronous SGD is faster": asynchronous[0].seconds < synchronous[0].seconds,
        "a slow host delays averaging, and not asynchronous SGD": synchronous[1].seconds
        > 2 * asynchronous[1].seconds,
    }


def count() -> dict[str, bool]:
    """Prints messages, bytes and work of three drivers, by formula and as played; returns what agrees.

    Downpour fetches before the first minibatch; after each it pushes once and fetches once. A fetch that a
    push has overtaken is repeated, which the formula leaves out.
    """
    n, s, rounds = REPLICAS, USUAL.n_bytes / 1e6, STEPS // 8
    ring, tree = 2 * n * (n - 1), 2 * (n - 1)
    dots = tree * 5 * n * 8 / 1e6  # five inner products, of each replica, of eight bytes
    pushes = n * STEPS
    formulas: dict[str, tuple[Driver, float, float]] = {
        "Parallel SGD": (LocalSGD(every=STEPS, **BASE), ring, 2 * (n - 1) * s),
        "ADMM, rounds of 8": (
            ADMM(every=8, absolute=0.0, relative=0.0, **BASE),
            rounds * (ring + tree),
            rounds * (2 * (n - 1) * s + dots),
        ),
        "Downpour": (Downpour(**BASE), 2 * pushes + n, (2 * pushes + n) * s),
    }
    print(f"{'':20}  messages, formula    played   MB, formula    played   minibatches, formula    played")
    agrees = {}
    for name, (driver, messages, megabytes) in formulas.items():
        world = World(driver, PROBLEM, Hosts())
        while world.done[0] < STEPS:
            world.play(world.now + 0.1 * USUAL.step_s)
        world.play(world.now + 0.8 * USUAL.step_s)
        done = sum(world.done)
        sent, n_bytes = world.n_messages, world.n_bytes / 1e6
        print(
            f"{name:20}  {messages:17.0f}  {sent:8.0f}  {megabytes:12.2f}  {n_bytes:8.2f}"
            f"  {pushes:21.0f}  {done:8.0f}"
        )
        agrees[f"{name} sends what its formula says"] = all(
            abs(one - other) <= (0.01 if driver.shards else 1e-9) * other
            for one, other in ((sent, messages), (n_bytes, megabytes), (done, pushes))
        )
    return agrees


def main() -> None:
    """Prints both tables and every claim; ends with an error where one does not hold."""
    checks = compare() | count()
    for name, holds in checks.items():
        print(f"{name}: {'yes' if holds else 'NO'}")
    if not all(checks.values()):
        raise SystemExit("a claim does not hold")


if __name__ == "__main__":
    main()
