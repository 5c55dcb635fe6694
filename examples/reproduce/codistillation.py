"""Codistillation past the limit of large batches: held-out loss by steps, churn of predictions, and bytes.

    python -m examples.reproduce.codistillation [SEED ...]        (about half a minute for each seed)

Replicas train on scikit-learn's digits with 256 examples each, a sixth of the data. A second replica in one
synchronous group hardly lowers the loss; as a second group it does. Two ablations must not reach what
codistillation does: a group that learns what it predicted itself, and smoothed labels. Churn is the share of
held-out pictures on which two trainings differ that have other seeds and the same data. Source: Anil and
others, "Large scale distributed neural network training through online distillation", 2018.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np

from examples.digits import data
from examples.reproduce.compression import HIDDEN
from partita.engine import AllReduce, Codistillation, Momentum, Run, predict, train
from partita.engine.drivers.driver import Driver
from partita.engine.drivers.traffic import traffic
from partita.engine.protocol.views import Member
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition

BATCH, EPOCHS, EVERY, BURN_IN = 256, 100, 20, 40
OPTIMIZER = Momentum(0.2, momentum=0.9)


@dataclass(frozen=True)
class OwnCopy(Codistillation):
    """The ablation: a group's teacher is itself, as it was some steps ago."""

    def teachers(self, me: Member) -> tuple[str, ...]:
        """The vector of the replica's own group."""
        return (f"group_{me.replica % self.groups}",)


CODISTILLATION = Codistillation(every=EVERY, burn_in=BURN_IN, optimizer=OPTIMIZER)
CASES: dict[str, tuple[Driver, float]] = {
    "synchronous, 1 replica": (AllReduce(optimizer=OPTIMIZER), 0.0),
    "synchronous, 2 replicas": (AllReduce(replicas=2, optimizer=OPTIMIZER), 0.0),
    "codistillation, 2 groups": (CODISTILLATION, 0.0),
    "towards its own copy": (OwnCopy(every=EVERY, burn_in=BURN_IN, optimizer=OPTIMIZER), 0.0),
    "smoothed labels": (AllReduce(replicas=2, optimizer=OPTIMIZER), 0.1),
}
"""The driver of each case, and the smoothing of labels."""
SYNCHRONOUS, CODISTILLED = TWICE = ("synchronous, 2 replicas", "codistillation, 2 groups")


def network(smoothing: float = 0.0) -> Network:
    """Two dense layers over 8 x 8 pictures."""
    net = Network("digits")
    hidden = Dense(HIDDEN, activation="relu", name="hidden")(net.input("image", shape=(8, 8, 1)))
    scores = Dense(10, name="scores")(hidden)
    net.loss = SoftmaxCrossEntropy(label_smoothing=smoothing)(scores, net.target("digit"))
    return net


def trained(case: str, split: int, seed: int, *, epochs: int = EPOCHS) -> Run:
    """A run with a validation at the end of every round."""
    driver, smoothing = CASES[case]
    training, held_out = data(split)
    plan = partition(network(smoothing), Cluster.local(machines=1), batch=BATCH)
    epochs = epochs if driver.replicas > 1 else epochs // 2  # as many steps
    rounds = {"validation": held_out, "validate_every": EVERY * driver.replicas}
    return train(plan, training, driver=driver, epochs=epochs, seed=seed, show="nothing", **rounds)


def probabilities(run: Run, split: int) -> np.ndarray:
    """The probabilities of the classes of held-out pictures, `[example, class]`."""
    scores = np.asarray(predict(run, {"image": data(split)[1]["image"]}, show="nothing"), np.float64)
    shares = np.exp(scores - scores.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


def cross_entropy(found: np.ndarray, split: int) -> float:
    """The mean over the held-out pictures, without any smoothing."""
    labels = data(split)[1]["digit"]
    return float(-np.log(found[np.arange(len(labels)), labels]).mean())


def kilobytes(driver: Driver) -> float:
    """Returns what a replica sends in the run, by the formulas."""
    examples = len(data()[0]["digit"])
    size = sum(math.prod(parameter.shape) for parameter in network().graph().parameters.values())
    run = {"examples": examples, "batch": BATCH, "epochs": EPOCHS, "sizes": [size]}
    return traffic(driver, **run).n_bytes / 1000


def measured(case: str, seeds: list[int]) -> tuple[np.ndarray, float]:
    """The mean held-out loss at the end of each round, and the churn (0 where each seed trains once)."""
    curves, churn = [], []
    for seed in seeds:
        runs = [trained(case, seed, 100 * n + seed) for n in range(2 if case in TWICE else 1)]
        found = [probabilities(run, seed) for run in runs]
        if CASES[case][1]:  # a validation smoothes labels, too
            curves += [[cross_entropy(one, seed)] for one in found]
        else:
            curves += [[one.metrics["val_loss"] for one in run.validations] for run in runs]
        churn.append(np.mean(found[0].argmax(1) != found[-1].argmax(1)))
    return np.mean(curves, axis=0), float(np.mean(churn))


def main(seeds: list[int]) -> None:
    """Prints a line for each case; ends with an error unless codistillation reaches the lowest loss."""
    found = {case: measured(case, seeds) for case in CASES}
    lowest = {case: float(curve.min()) for case, (curve, _) in found.items()}
    for case, (curve, churn) in found.items():
        steps = EVERY * (1 + int(np.argmax(curve <= lowest[SYNCHRONOUS])))
        reached = f"after {steps:3} steps" if lowest[case] <= lowest[SYNCHRONOUS] else "never          "
        again = f"  churn {100 * churn:.2f}%" if case in TWICE else ""
        sent = f"{kilobytes(CASES[case][0]):7.1f} kB"
        print(f"{case:24}  lowest {lowest[case]:.4f}  {lowest[SYNCHRONOUS]:.4f} {reached}  {sent}{again}")
    if min(lowest, key=lambda case: lowest[case]) != CODISTILLED:
        raise SystemExit("codistillation does not do what it should")


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]] or [0, 1, 2, 3, 4])
