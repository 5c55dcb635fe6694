"""Codistillation past the limit of large batches: held-out loss by steps, and bytes by what is exchanged.

    python -m examples.reproduce.codistillation [SEED ...]        (about half a minute for each seed)

Replicas train on scikit-learn's digits with 256 examples each, a sixth of the data. A second replica in one
synchronous group hardly lowers the loss; as a second group it does. Two ablations must not reach what
codistillation does: a group that learns what it predicted itself, and smoothed labels. Groups that exchange
predictions take the same steps as those that exchange parameters. Source: Anil and others, "Large scale
distributed neural network training through online distillation", 2018.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

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


SETTINGS: dict[str, Any] = {"every": EVERY, "burn_in": BURN_IN, "optimizer": OPTIMIZER}
CASES: dict[str, tuple[Driver, float]] = {
    "synchronous, 1 replica": (AllReduce(optimizer=OPTIMIZER), 0.0),
    "synchronous, 2 replicas": (AllReduce(replicas=2, optimizer=OPTIMIZER), 0.0),
    "codistillation, 2 groups": (Codistillation(**SETTINGS), 0.0),
    "of predictions": (Codistillation(**SETTINGS, exchange="predictions"), 0.0),
    "towards its own copy": (OwnCopy(**SETTINGS), 0.0),
    "smoothed labels": (AllReduce(replicas=2, optimizer=OPTIMIZER), 0.1),
}
"""The driver of each case, and the smoothing of labels."""
SYNCHRONOUS, CODISTILLED = "synchronous, 2 replicas", ("codistillation, 2 groups", "of predictions")


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


def probabilities(run: Run, images: np.ndarray) -> np.ndarray:
    """The probabilities of the classes of pictures, `[example, class]`."""
    scores = np.asarray(predict(run, {"image": images}, show="nothing"), np.float64)
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
    run = {"examples": examples, "batch": BATCH, "epochs": EPOCHS, "sizes": [size], "scores": [10 * BATCH]}
    return traffic(driver, **run).n_bytes / 1000


def measured(case: str, seeds: list[int]) -> np.ndarray:
    """The mean held-out loss at the end of each round."""
    curves = []
    for seed in seeds:
        run = trained(case, seed, seed)
        if CASES[case][1]:  # a validation smoothes labels, too
            curves.append([cross_entropy(probabilities(run, data(seed)[1]["image"]), seed)])
        else:
            curves.append([one.metrics["val_loss"] for one in run.validations])
    return np.mean(curves, axis=0)


def main(seeds: list[int]) -> None:
    """Prints a line for each case; ends with an error unless codistillation reaches the lowest loss."""
    found = {case: measured(case, seeds) for case in CASES}
    lowest = {case: float(curve.min()) for case, curve in found.items()}
    for case, curve in found.items():
        steps = EVERY * (1 + int(np.argmax(curve <= lowest[SYNCHRONOUS])))
        reached = f"after {steps:3} steps" if lowest[case] <= lowest[SYNCHRONOUS] else "never          "
        sent = f"{kilobytes(CASES[case][0]):7.1f} kB"
        print(f"{case:24}  lowest {lowest[case]:.4f}  {lowest[SYNCHRONOUS]:.4f} {reached}  {sent}")
    if min(lowest, key=lambda case: lowest[case]) not in CODISTILLED:
        raise SystemExit("codistillation does not do what it should")


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]] or [0, 1, 2, 3, 4])
