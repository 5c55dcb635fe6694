"""Churn of predictions under codistillation: how much two trainings differ that have other seeds alone.

    python -m examples.reproduce.churn [SEED ...]        (five seeds: about three minutes, on two cores)

A small network tells the digits 0 to 4 from 5 to 9; a fifth of the labels it is trained on are drawn. Two
trainings of a case have the same data, other initial values and another order. Churn is the mean absolute
difference of the probabilities that they give for held-out pictures, as in the paper, and beside it the
share of pictures whose class differs. Training is long against a round, and the rate falls to zero: groups
that learn from parameters far behind their own change places in the place of meeting. The ablations must not
do what codistillation does: a group that learns what it predicted itself, and smoothed labels.

Source: Anil and others, "Large scale distributed neural network training through online distillation", 2018,
the section on prediction churn.
"""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from examples import digits
from examples.reproduce.codistillation import OwnCopy, probabilities
from partita.engine import SGD, AllReduce, Codistillation, Cosine, train
from partita.engine.drivers.driver import Driver
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition

BATCH, STEPS, HIDDEN, DRAWN = 16, 810, 32, 0.2
OPTIMIZER = SGD(Cosine(0.1, steps=STEPS))
SETTINGS: dict[str, Any] = {"every": 5, "burn_in": 20, "weight": 2.0, "optimizer": OPTIMIZER}


@dataclass(frozen=True)
class Case:
    """A way to train, by so many trainings that differ in their seeds.

    Attributes:
        driver: of each.
        smoothing: of labels.
        trainings: how many.
        members: trainings whose mean is one prediction.
    """

    driver: Driver
    smoothing: float = 0.0
    trainings: int = 2
    members: int = 1


SINGLE, PAIR, FOUR = "one network", "codistillation, 2 groups", "codistillation, 4 groups"
CASES = {
    SINGLE: Case(AllReduce(optimizer=OPTIMIZER), trainings=4),
    "an ensemble of two": Case(AllReduce(optimizer=OPTIMIZER), trainings=4, members=2),
    PAIR: Case(Codistillation(**SETTINGS)),
    FOUR: Case(Codistillation(replicas=4, groups=4, **SETTINGS)),
    "towards its own copy": Case(OwnCopy(**SETTINGS)),
    "smoothed labels": Case(AllReduce(optimizer=OPTIMIZER), smoothing=0.1),
}


def data(split: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Pictures and halves of the digits, of which some are drawn in what is trained on."""
    training, held_out = ({**part, "digit": part["digit"] // 5} for part in digits.data(split))
    random, n = np.random.default_rng([split, 1]), len(training["digit"])
    drawn = random.random(n) < DRAWN
    training["digit"][drawn] = random.integers(0, 2, n)[drawn]
    return training, held_out


def network(smoothing: float) -> Network:
    """Two dense layers over 8 x 8 pictures."""
    net = Network("halves")
    hidden = Dense(HIDDEN, activation="relu", name="hidden")(net.input("image", shape=(8, 8, 1)))
    net.loss = SoftmaxCrossEntropy(label_smoothing=smoothing)(
        Dense(2, name="scores")(hidden), net.target("digit")
    )
    return net


@cache
def predicted(driver: Driver, smoothing: float, split: int, seed: int) -> np.ndarray:
    """The probabilities of one training for the held-out pictures, `[example, class]`."""
    training, held_out = data(split)
    plan = partition(network(smoothing), Cluster.local(machines=1), batch=BATCH)
    steps_of_epoch = -(-len(training["digit"]) // (BATCH * driver.replicas))
    epochs = round(STEPS / steps_of_epoch)
    run = train(plan, training, driver=driver, epochs=epochs, seed=seed, show="nothing")
    return probabilities(run, held_out["image"])


class Measured(NamedTuple):
    """What a case has on one split, or their mean.

    Attributes:
        churn: mean absolute difference of the probabilities of two trainings.
        changed: share of pictures whose class differs.
        loss: on held-out pictures, mean of the trainings.
    """

    churn: float
    changed: float
    loss: float


def measured(split: int) -> list[Measured]:
    """Returns the means over pairs of trainings of each case."""
    labels = data(split)[1]["digit"]
    results = []
    for case in CASES.values():
        seeds = (1000 * n + split for n in range(case.trainings))
        found = [predicted(case.driver, case.smoothing, split, seed) for seed in seeds]
        means = [np.mean(found[n : n + case.members], axis=0) for n in range(0, case.trainings, case.members)]
        pairs = [*combinations(means, 2)]
        churn = fmean(float(np.abs(one - other).mean()) for one, other in pairs)
        changed = fmean(float((one.argmax(1) != other.argmax(1)).mean()) for one, other in pairs)
        loss = fmean(float(-np.log(one[np.arange(len(labels)), labels]).mean()) for one in means)
        results.append(Measured(churn, changed, loss))
    return results


def main(splits: list[int]) -> None:
    """Prints a line for each case; ends with an error unless more groups have less churn, and no ablation."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        by_case = zip(*pool.map(measured, splits), strict=True)
        found = {
            name: Measured(*map(fmean, zip(*of, strict=True)))
            for name, of in zip(CASES, by_case, strict=True)
        }
    whole = found[SINGLE].churn
    for name, (churn, changed, loss) in found.items():
        share = f"{churn / whole:.2f} of one network's"
        print(f"{name:26} churn {churn:.4f}, {share}  {100 * changed:.2f}% changed  loss {loss:.3f}")
    ablations = min(found[name].churn for name in ("towards its own copy", "smoothed labels"))
    if not found[FOUR].churn <= found[PAIR].churn < min(0.95 * whole, ablations):
        raise SystemExit("codistillation does not do what it should")


if __name__ == "__main__":
    main([int(split) for split in sys.argv[1:]] or [0, 1, 2, 3, 4])
