"""Federated averaging on digits: rounds to an accuracy, as in table 2 of McMahan and others, 2017.

    python -m examples.reproduce.fedavg            (two minutes; five seeds)

prints the rounds until 90% of held-out digits are right, for FedSGD and for more work of each client, with
data of any labels (IID) and of two labels each; then two ablations, which must be worse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from partita.engine import SGD, FedAvg, train
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition

SEEDS, ACCURACY, MOST = range(5), 0.9, 200
BASE = FedAvg(rounds=MOST, clients=40, fraction=0.1, optimizer=SGD(0.2), inline="all")
WORK: Mapping[str, dict[str, Any]] = {
    "FedSGD        E 1   B inf": {"whole_batch": True, "optimizer": SGD(0.5)},
    "FedAvg        E 5   B 10 ": {"local_epochs": 5},
    "FedAvg        E 20  B 10 ": {"local_epochs": 20},
}

ENDS: Mapping[str, dict[str, Any]] = {
    "weighted mean, unbalanced clients ": {},
    "unweighted mean, the same clients ": {"weighted": False},
    "no averaging: one client of a round": {"fraction": 0.025, "labels": 2},
}


def network() -> Network:
    """A hidden layer of 64, and a score for each digit."""
    net = Network("digits")
    hidden = Dense(64, activation="relu")(net.input("pixels", shape=64))
    net.loss = SoftmaxCrossEntropy()(Dense(10)(hidden), net.target("digit"))
    return net


def data(seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns scikit-learn's digits: what to train on, and a fifth to hold out."""
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    pixels, labels = (digits.data[order] / 16).astype(np.float32), digits.target[order]
    fifth = len(labels) // 5
    held_out = {"pixels": pixels[:fifth], "digit": labels[:fifth]}
    return {"pixels": pixels[fifth:], "digit": labels[fifth:]}, held_out


class Until:
    """Ends a run at an accuracy, and keeps those of all rounds."""

    def __init__(self, accuracy: float) -> None:
        self.accuracy, self.found = accuracy, list[float]()

    def on_epoch(self, epoch: int, metrics: Mapping[str, float], control: Any) -> None:
        """Is called after each round."""
        self.found.append(metrics["val_accuracy"])
        if self.found[-1] >= self.accuracy:
            control.stop("the accuracy is reached")


def accuracies(seed: int, *, accuracy: float = ACCURACY, **settings: Any) -> list[float]:
    """The accuracy after each round, until the wanted one."""
    until, (training, held_out) = Until(accuracy), data(seed)
    plan = partition(network(), Cluster.local(), batch=10)
    driver = replace(BASE, **settings)
    given = {"seed": seed, "validation": held_out, "callbacks": [until], "show": "nothing"}
    train(plan, training, driver=driver, **given)
    return until.found


def rounds(seed: int, **settings: Any) -> float:
    """Rounds until the accuracy is reached; infinity: it is not."""
    found = accuracies(seed, **settings)
    return len(found) if found[-1] >= ACCURACY else math.inf


def end(**settings: Any) -> float:
    """The mean accuracy in rounds 4 to 6 of all seeds, on clients of very different sizes."""
    few: dict[str, Any] = {"accuracy": math.inf, "rounds": 6, "local_epochs": 5, "spread": 2.0}
    return fmean(fmean(accuracies(seed, **few | settings)[3:]) for seed in SEEDS)


def main() -> None:
    """Prints the table and the ablations, and fails where their order is another one."""
    print(f"rounds to {ACCURACY:.0%}, mean of {len(SEEDS)} seeds    IID  two labels each")
    table = []
    for name, settings in WORK.items():
        means = [fmean(rounds(seed, labels=labels, **settings) for seed in SEEDS) for labels in (0, 2)]
        print(f"{name}  {means[0]:15.1f}  {means[1]:15.1f}")
        table.append(means)
    sgd, *others = table
    ends = {name: end(**settings) for name, settings in ENDS.items()}
    for name, accuracy in ends.items():
        print(f"{name}: accuracy {accuracy:.3f} in rounds 4 to 6")
    weighted, unweighted, alone = ends.values()
    if not all(other < slow for one in others for other, slow in zip(one, sgd, strict=True)):
        raise SystemExit("FedSGD should be slowest")
    if not alone < unweighted < weighted:
        raise SystemExit("the ablations should be worse")


if __name__ == "__main__":
    main()
