"""Large batches: where linear scaling of the learning rate breaks, and LARS and LAMB hold.

    python -m examples.reproduce.large_batch [SEED ...]        (about half a minute for each seed)

Two replicas train on scikit-learn's digits for the same number of epochs with joined batches of 16 up to 720
examples: the steps fall from 90 to 2 an epoch. SGD with momentum has a rate in proportion to the batch, LARS
and LAMB one in proportion to its square root; all warm up for two epochs. Sources: Goyal and others, 2017
(linear scaling, warm-up); You, Gitman and Ginsburg, 2017 (LARS); You and others, ICLR 2020 (LAMB).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from examples.digits import data
from examples.reproduce.compression import network
from partita.engine import LAMB, LARS, AllReduce, LinearWarmup, Momentum, Optimizer, evaluate, train
from partita.partitioner import Cluster, partition

BATCHES, SMALLEST, EPOCHS, REPLICAS = (16, 128, 720), 16, 20, 2

CASES: dict[str, Callable[[int, int], Optimizer]] = {
    "SGD, linear scaling": lambda times, steps: Momentum(LinearWarmup(steps, 0.05 * times)),
    "LARS": lambda times, steps: LARS(LinearWarmup(steps, 0.2 * times**0.5), trust=0.01),
    "LAMB": lambda times, steps: LAMB(LinearWarmup(steps, 0.005 * times**0.5)),
}
"""The optimizer of a batch so many times the smallest, with a warm-up of so many steps."""


def accuracy_of(case: str, batch: int, seed: int, *, epochs: int = EPOCHS) -> float:
    """The accuracy on held-out digits of one run."""
    training, held_out = data(seed)
    plan = partition(network(), Cluster.local(machines=1), batch=batch // REPLICAS)
    steps = -(-len(training["digit"]) // batch)
    optimizer = CASES[case](batch // SMALLEST, 2 * steps)
    driver = AllReduce(replicas=REPLICAS, optimizer=optimizer)
    run = train(plan, training, driver=driver, epochs=epochs, seed=seed, show="nothing")
    return evaluate(run, held_out, show="nothing").accuracy


def main(*seeds: str) -> None:
    """Trains every case for each seed, and prints a table."""
    print(f"{'accuracy with a batch of':<25}", *(f"{batch:>17}" for batch in BATCHES))
    for case in CASES:
        cells = []
        for batch in BATCHES:
            found = np.array([accuracy_of(case, batch, int(seed)) for seed in seeds or "01234"])
            cells.append(f"{found.mean():.3f} +- {found.std():.3f}")
        print(f"{case:<25}", *(f"{cell:>17}" for cell in cells), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
