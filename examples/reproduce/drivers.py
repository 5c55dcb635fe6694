"""All drivers on the same work: time, bytes and accuracy, and what a slow or a dead host costs.

    python -m examples.reproduce.drivers            (below three minutes)

prints the table of docs/choosing_a_driver.md. A driver is added by a line of `contenders`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import inf
from statistics import median

from examples.reproduce.contenders import CONTENDERS, REPLICAS, measured, rate_of
from examples.reproduce.courses import Course
from examples.reproduce.two_functions import Problem
from examples.reproduce.virtual import Hosts
from partita.engine.drivers import Driver

SPREAD, SEEDS, SLOW, DEAD_S = 0.3, 5, 10.0, 10.0


def row(problem: Problem, driver: Driver, *, seeds: int, target: float) -> list[str]:
    """Returns the cells of a driver: times are in mean times of a minibatch."""
    usual = Hosts(spread=SPREAD)
    slow = Hosts(spread=SPREAD, slow={REPLICAS - 1: SLOW})
    dead = Hosts(spread=SPREAD, dead={REPLICAS - 1: (1.0, 1.0 + DEAD_S)})

    def runs(hosts: Hosts) -> list[Course]:
        return [measured(driver, problem, hosts, seed=seed, target=target) for seed in range(seeds)]

    def steps(found: list[Course]) -> float:
        return median(one.reached_s(target) for one in found) / usual.step_s

    found = runs(usual)
    took = steps(found)
    sent = median(one.n_bytes for one in found) / usual.n_bytes
    later = [measured(driver, problem, usual, seed=seed, target=inf) for seed in range(2)]
    best = median(max(accuracy for _, accuracy in one.points) for one in later)
    others = [steps(runs(hosts)) for hosts in (slow, dead)]
    return [f"{took:.0f}", f"{sent:.0f}", f"{best:.3f}", *(f"{one / took:.1f} x" for one in others)]


def main(given: Sequence[str] | None = None) -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m examples.reproduce.drivers")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs whose median counts")
    parser.add_argument("--target", type=float, default=0.93, help="the accuracy to be reached, from 0 to 1")
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS), help="names of drivers")
    asked = parser.parse_args(given)
    problem = Problem()
    heads = "driver", f"time to {asked.target:.0%}", "vectors sent", "best", "one slow", "one dead"
    print("".join(f"{head:>14}" if n else f"{head:30}" for n, head in enumerate(heads)))
    for name in asked.only:
        make = CONTENDERS[name]
        rate = rate_of(make, problem, Hosts(spread=SPREAD), target=asked.target)
        cells = row(problem, make(rate), seeds=asked.seeds, target=asked.target)
        print(f"{name:30}" + "".join(f"{cell:>14}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
