"""Training in float16: a dynamic loss scale, and what becomes of it without one.

    python -m examples.reproduce.float16 [SEED ...]        (about half a minute for each seed)

Two replicas of two machines each train on scikit-learn's digits, by a loss of weight one in a million: so
small are the gradients of a mean over as many pixels or words. Adam does not mind, but such numbers are zero
in float16. Bytes are those of the messages of a replica's machines in a step. Source: Micikevicius and
others, "Mixed precision training", ICLR 2018, section 3.2.
"""

from __future__ import annotations

import sys

import numpy as np

from examples.digits import data
from partita.engine import Adam, AllReduce, LossScale, Run, evaluate, train
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, partition

REPLICAS, BATCH, EPOCHS, WEIGHT = 2, 32, 8, 1e-6

CASES: dict[str, tuple[str, LossScale | None]] = {
    "float32": ("float32", None),
    "bfloat16": ("bfloat16", None),
    "float16": ("float16", None),
    "float16, scale from 2**48": ("float16", LossScale(start=2.0**48, most=2.0**48)),
    "float16, no scale": ("float16", LossScale(start=1.0, most=1.0)),
}
"""The precision and the loss scale of each case."""


def network() -> Network:
    """Two dense layers over 8 x 8 pictures."""
    net = Network("digits")
    hidden = Dense(64, activation="relu", name="hidden")(net.input("image", shape=(8, 8, 1)))
    scores = Dense(10, name="scores")(hidden)
    net.loss = SoftmaxCrossEntropy(loss_weight=WEIGHT)(scores, net.target("digit"))
    return net


def plan_of(case: str, *, machines: int = 2) -> Plan:
    """The plan of a replica."""
    precision, _ = CASES[case]
    cluster = Cluster.local(machines)
    return partition(network(), cluster, batch=BATCH, precision=precision, strategy="balanced")


def trained(case: str, seed: int, *, machines: int = 2, epochs: int = EPOCHS) -> tuple[Run, float]:
    """One run, and its accuracy on held-out digits."""
    training, held_out = data(seed)
    driver = AllReduce(replicas=REPLICAS, optimizer=Adam(0.01, epsilon=1e-16), loss_scale=CASES[case][1])
    run = train(
        plan_of(case, machines=machines), training, driver=driver, epochs=epochs, seed=seed, show="nothing"
    )
    return run, evaluate(run, held_out, show="nothing").accuracy


def main(*seeds: str) -> None:
    """Trains every case for each seed, and prints a table; ends with an error where no scale would do."""
    means = {}
    print(f"{'':<27}{'accuracy':>17}{'bytes in a step':>17}{'scale at the end':>18}{'skipped':>9}")
    for case in CASES:
        found = [trained(case, int(seed)) for seed in seeds or "01234"]
        accuracies = np.array([accuracy for _, accuracy in found])
        sent, _ = plan_of(case).traffic_bytes
        scales = [run.loss_scale for run, _ in found if run.loss_scale is not None]
        ends = sorted({f"2**{np.log2(scale.scale):.0f}" for scale in scales})
        skipped = sorted({scale.skipped for scale in scales})
        cells = f"{sum(sent):>17,}{', '.join(ends):>18}{', '.join(map(str, skipped)):>9}"
        print(f"{case:<27}{accuracies.mean():>8.3f} +- {accuracies.std():.3f}{cells}", flush=True)
        means[case] = accuracies.mean()
    if not means["float16"] > max(means["float32"] - 0.01, means["float16, no scale"] + 0.3):
        raise SystemExit("the loss scale does not do what it should")


if __name__ == "__main__":
    main(*sys.argv[1:])
