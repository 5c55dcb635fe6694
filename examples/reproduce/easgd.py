"""Elastic averaging against Downpour where replicas exchange less and less often, in virtual time.

    python -m examples.reproduce.easgd              (two processes, below three minutes)

prints the accuracy of six replicas after 20 epochs, for each number of steps between exchanges, at the best
of some learning rates. The paper's claim (section 5): with long periods Downpour is unstable, since what a
push adds up was computed far from where the others are, and elastic averaging is not. The ablation: with
hardly any elastic force the centre learns nothing. docs/elastic_averaging.md says what comes out.

Source: Zhang, Choromanska and LeCun, "Deep learning with elastic averaging SGD", 2015.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from statistics import mean, pstdev

from examples.reproduce.contenders import in_processes
from examples.reproduce.courses import Course, course
from examples.reproduce.two_functions import EXAMPLES, Problem
from examples.reproduce.virtual import Hosts
from partita.engine import EASGD, SGD, Downpour, Momentum
from partita.engine.drivers import Driver

REPLICAS, EPOCHS, SEEDS = 6, 20, 5
PERIODS = (1, 4, 16, 64)
RATES = (0.025, 0.1, 0.4, 1.6)
SPREAD = 0.3

SYSTEMS: dict[str, Callable[[float, int], Driver]] = {
    "Downpour": lambda r, n: Downpour(
        replicas=REPLICAS, optimizer=SGD(r), fetch_every=n, push_every=n, run_ahead=n
    ),
    "EASGD": lambda r, n: EASGD(replicas=REPLICAS, optimizer=SGD(r), every=n),
    "EAMSGD": lambda r, n: EASGD(replicas=REPLICAS, optimizer=Momentum(r / 4, nesterov=True), every=n),
    "EASGD, alpha 0.0001": lambda r, n: EASGD(
        replicas=REPLICAS, optimizer=SGD(r), every=n, moving_rate=0.0001
    ),
}


def ended(driver: Driver, seed: int) -> Course:
    """Plays a run of so many epochs."""
    problem, hosts = Problem(), Hosts(spread=SPREAD)
    until_s = EPOCHS * EXAMPLES / problem.batch / REPLICAS * hosts.step_s
    return course(driver, problem, hosts, seed=seed, target=inf, until_s=until_s)


def row(name: str, *, seeds: int) -> list[str]:
    """Returns the cells of a system: for each period the accuracies at its best rate, and the bytes."""
    cells = []
    for every in PERIODS:
        runs = {rate: [ended(SYSTEMS[name](rate, every), seed) for seed in range(seeds)] for rate in RATES}
        found = {rate: [one.points[-1][1] if one.points else 0.0 for one in runs[rate]] for rate in RATES}
        best = max(RATES, key=lambda rate: mean(found[rate]))
        n_bytes = mean(one.n_bytes for one in runs[best])
        cells.append(f"{mean(found[best]):.3f} +- {pstdev(found[best]):.3f} {n_bytes / 1e6:6.0f} MB")
    return cells


def main(given: Sequence[str] | None = None) -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m examples.reproduce.easgd")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="starts whose mean counts")
    parser.add_argument("--only", nargs="*", default=list(SYSTEMS), help="names of systems")
    asked = parser.parse_args(given)
    print(f"{'steps from exchange to exchange':32}" + "".join(f"{every:>26}" for every in PERIODS))
    rows = in_processes(partial(row, seeds=asked.seeds), asked.only)
    for name, cells in zip(asked.only, rows, strict=True):
        print(f"{name:32}" + "".join(f"{cell:>26}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
