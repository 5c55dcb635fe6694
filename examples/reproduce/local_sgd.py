"""Local steps and means of parameters beside synchronous SGD: accuracy on digits, and bytes that are sent.

    python -m examples.reproduce.local_sgd [SEED ...]        (about a quarter of a minute for each seed)

Two replicas make the same number of steps under each driver. An ablation must fail: an outer rate at which
DiLoCo overshoots.
"""

from __future__ import annotations

import math
import sys

import numpy as np

from examples.digits import data, network
from partita.engine import (
    AllReduce,
    DiLoCo,
    DynamicAveraging,
    LocalSGD,
    Momentum,
    ParameterAveraging,
    RunFailed,
    evaluate,
    train,
)
from partita.engine.drivers.driver import Driver
from partita.engine.drivers.traffic import traffic
from partita.engine.protocol.actions import Dots
from partita.partitioner import Cluster, partition

REPLICAS, BATCH, EPOCHS, EVERY = 2, 8, 2, 15
SGD = Momentum(0.05, momentum=0.9)
DRIVERS: dict[str, Driver] = {
    "synchronous": AllReduce(replicas=REPLICAS, optimizer=Momentum(0.1, momentum=0.9)),
    "local SGD": LocalSGD(replicas=REPLICAS, every=EVERY, optimizer=SGD),
    "one mean at the end": ParameterAveraging(replicas=REPLICAS, optimizer=SGD),
    "DiLoCo": DiLoCo(replicas=REPLICAS, every=EVERY, optimizer=SGD),
    "dynamic averaging": DynamicAveraging(replicas=REPLICAS, every=EVERY, delta=3.0, optimizer=SGD),
}
FAILING: dict[str, Driver] = {
    "DiLoCo, outer rate 3": DiLoCo(replicas=REPLICAS, every=EVERY, optimizer=SGD, outer_learning_rate=3.0),
}


def accuracy(driver: Driver, seed: int) -> float:
    """The accuracy on pictures held out; 0 where the training does not stay finite."""
    training, held_out = data(seed)
    plan = partition(network(), Cluster.local(machines=1), batch=BATCH)
    try:
        run = train(plan, training, driver=driver, epochs=EPOCHS, seed=seed, show="nothing")
    except RunFailed:
        return 0.0
    found = evaluate(run, held_out).accuracy
    assert found is not None
    return found


def kilobytes(driver: Driver) -> float:
    """Returns what each replica sends by the formulas; the most of it under dynamic averaging."""
    training, _ = data()
    size = sum(math.prod(parameter.shape) for parameter in network().graph().parameters.values())
    examples = len(training["digit"])
    far = getattr(driver, "delta", 0.0) * 2 + 1

    def violators(dots: Dots) -> tuple[tuple[float, ...], ...]:
        return ((far,) * len(dots.pairs),) * REPLICAS

    run = {"examples": examples, "batch": BATCH, "epochs": EPOCHS}
    return traffic(driver, **run, sizes=[size], products=violators).n_bytes / 1000


def main(seeds: list[int]) -> None:
    """Prints a line for each driver; ends with an error unless all reach 0.9 and the ablation does not."""
    ends = []
    for name, driver in (DRIVERS | FAILING).items():
        found = np.array([accuracy(driver, seed) for seed in seeds])
        sent = kilobytes(driver)
        print(f"{name:22} {found.mean():.3f} +- {found.std():.3f}  {sent:9.1f} kB a replica", flush=True)
        ends.append((found.mean() >= 0.9) == (name in DRIVERS))
    if not all(ends):
        raise SystemExit("a driver does not do what it should")


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]] or [0, 1, 2, 3, 4])
