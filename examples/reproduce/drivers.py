"""Drivers on the same work: time, bytes and accuracy, and what a slow or a dead host costs.

    python -m examples.reproduce.drivers            (two processes, below three minutes)

prints the table of docs/choosing_a_driver.md. A driver is added by a line of `contenders`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from math import inf
from statistics import median

from examples.reproduce.contenders import CONTENDERS, REPLICAS, in_processes, measured, rate_of
from examples.reproduce.courses import Course
from examples.reproduce.two_functions import Problem
from examples.reproduce.virtual import Hosts

SPREAD, SEEDS, SLOW, DEAD_S = 0.3, 5, 10.0, 10.0


def row(name: str, *, seeds: int, target: float) -> list[str]:
    """Returns the cells of a driver: times are in mean times of a minibatch."""
    problem, make, usual = Problem(), CONTENDERS[name], Hosts(spread=SPREAD)
    driver = make(rate_of(make, problem, usual, target=target))
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
    costs = (f"{one / took:.1f} x" if one < inf else "never" for one in others)
    return [f"{took:.0f}", f"{sent:.0f}", f"{best:.3f}", *costs]


def main(given: Sequence[str] | None = None) -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m examples.reproduce.drivers")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs whose median counts")
    parser.add_argument("--target", type=float, default=0.93, help="the accuracy to be reached, from 0 to 1")
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS), help="names of drivers")
    asked = parser.parse_args(given)
    heads = "driver", f"time to {asked.target:.0%}", "vectors sent", "best", "one slow", "one dead"
    print("".join(f"{head:>14}" if n else f"{head:32}" for n, head in enumerate(heads)))
    rows = in_processes(partial(row, seeds=asked.seeds, target=asked.target), asked.only)
    for name, cells in zip(asked.only, rows, strict=True):
        print(f"{name:32}" + "".join(f"{cell:>14}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
