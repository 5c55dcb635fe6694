"""Compressed gradients: accuracy and bytes of each compressor, and what becomes of it without feedback.

    python -m examples.reproduce.compression [SEED ...]        (about half a minute for each seed)

Four replicas train on scikit-learn's digits, with a rate for each compressor: by synchronous SGD, by
Downpour, whose pushes are compressed, and by local SGD, where the change of a round is. The bytes are those
that a replica sends in a step, by the formulas of the compressors; the tests of drivers compare these with
what was sent. Sources: see `partita.engine.parameters.compression`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np

from examples.digits import data
from partita.engine import SGD, AllReduce, Downpour, LocalSGD, Momentum, Optimizer, evaluate, train
from partita.engine.parameters.compression import Compressor, Int8, OneBit, PowerSGD, TopK
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, partition

REPLICAS, BATCH, HIDDEN, EPOCHS = 4, 16, 64, 12
LOST = ", no feedback"

Case = tuple[Compressor | None, Optimizer]

CASES: dict[str, Case] = {
    "none": (None, Momentum(0.1)),
    "int8": (Int8(), Momentum(0.1)),
    "1 bit": (OneBit(), SGD(0.3)),
    "1 bit, no feedback": (OneBit(feedback=False), SGD(0.3)),
    "top 1%, DGC": (TopK(0.01, 0.9, warm_up=40), SGD(0.1)),
    "top 1%, no feedback": (TopK(0.01, feedback=False), SGD(0.3)),
    "PowerSGD, rank 1": (PowerSGD(1), Momentum(0.1)),
    "PowerSGD, rank 1, no feedback": (PowerSGD(1, feedback=False), Momentum(0.1)),
}
"""The compressor and the optimizer of each case of synchronous SGD."""

PUSHES: dict[str, Case] = {
    "Downpour, none": (None, SGD(0.05)),
    "Downpour, top 1%": (TopK(0.01), SGD(0.05)),
    "Downpour, top 1%, no feedback": (TopK(0.01, feedback=False), SGD(0.05)),
}
"""Likewise, of Downpour."""

EVERY = 9
ROUNDS: dict[str, Case] = {
    "local SGD, none": (None, SGD(0.1)),
    "local SGD, top 1%": (TopK(0.01), SGD(0.1)),
    "local SGD, top 1%, no feedback": (TopK(0.01, feedback=False), SGD(0.1)),
}
"""Likewise, of local SGD with rounds of EVERY steps."""


def network() -> Network:
    """Two dense layers over 8 x 8 pictures."""
    net = Network("digits")
    hidden = Dense(HIDDEN, activation="relu", name="hidden")(net.input("image", shape=(8, 8, 1)))
    net.loss = SoftmaxCrossEntropy()(Dense(10, name="scores")(hidden), net.target("digit"))
    return net


def bytes_of(plan: Plan, compress: Compressor | None, steps: int, *, pushes: bool = False) -> float:
    """The mean of the bytes that a replica sends in a step, by ring, or to one shard."""
    shapes = [parameter.shape for parameter in plan.graph.parameters.values()]
    shapes = [(shape[0], int(np.prod(shape[1:]))) if len(shape) > 1 else shape for shape in shapes]
    ring, others = (1.0, 1) if pushes else (2 * (REPLICAS - 1) / REPLICAS, REPLICAS - 1)
    if compress is None:
        return ring * 4 * sum(int(np.prod(shape)) for shape in shapes)
    compress = compress.alone if pushes else compress
    return (
        sum(
            4 * compress.items(shapes, 4, step=step, turn=turn) * (ring if kind == "sum" else others)
            for step in range(steps)
            for turn, kind in enumerate(compress.rounds)
        )
        / steps
    )


def accuracy_of(case: str, seed: int, *, epochs: int = EPOCHS) -> tuple[float, float]:
    """The accuracy on held-out digits of one run, and the bytes that a replica sends in a step."""
    training, held_out = data(seed)
    compress, optimizer = (CASES | PUSHES | ROUNDS)[case]
    plan = partition(network(), Cluster.local(machines=1), batch=BATCH)
    settings = {"replicas": REPLICAS, "compress": compress, "optimizer": optimizer}
    kind = Downpour if case in PUSHES else AllReduce
    driver = LocalSGD(every=EVERY, **settings) if case in ROUNDS else kind(**settings)
    run = train(plan, training, driver=driver, epochs=epochs, seed=seed, show="nothing")
    accuracy = evaluate(run, held_out, show="nothing").accuracy
    sent = bytes_of(plan, compress, max(run.steps), pushes=case in PUSHES)
    return accuracy, sent / EVERY if case in ROUNDS else sent


def check(accuracies: Mapping[str, float]) -> None:
    """Ends with an error unless feedback keeps the accuracy of whole messages, and its lack costs some.

    `accuracies`: of cases whose first one is not compressed.
    """
    whole = next(iter(accuracies.values()))
    for case, without in accuracies.items():
        if not case.endswith(LOST):
            continue
        (fed,) = (
            other for other in accuracies if other.startswith(case.removesuffix(LOST)) and other != case
        )
        if not accuracies[fed] > max(whole - 0.03, without + 0.01):
            raise SystemExit(
                f"{fed} has {accuracies[fed]:.3f}, {case} {without:.3f}, and no compression {whole:.3f}"
            )


def main(*seeds: str) -> None:
    """Trains every case for each seed, prints a table, and checks it."""
    print(f"{'compression':<30} {'accuracy':>17} {'bytes a step':>13} {'fewer':>7}")
    for cases in (CASES, PUSHES, ROUNDS):
        whole, means = 0.0, {}
        for case in cases:
            found = [accuracy_of(case, int(seed)) for seed in seeds or "01234"]
            accuracies, sent = np.array([one for one, _ in found]), found[0][1]
            whole, means[case] = whole or sent, float(accuracies.mean())
            spread = f"{accuracies.mean():.3f} +- {accuracies.std():.3f}"
            print(f"{case:<30} {spread:>17} {sent:>13,.0f} {whole / sent:>6.1f}x", flush=True)
        check(means)


if __name__ == "__main__":
    main(*sys.argv[1:])
