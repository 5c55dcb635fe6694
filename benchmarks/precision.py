"""Does bfloat16 learn what float32 learns? The digits example in both, from the same seeds.

    python -m benchmarks.precision [--rounds SEEDS] [--json FILE]

Each seed draws the first parameters and the order of the examples; a round is a training of 20 epochs on one
part in each precision, evaluated on the held-out examples. The difference of the means is compared with the
spread over the seeds: a precision that costs nothing lies within this spread.
"""

from __future__ import annotations

import statistics
from typing import Final

import numpy as np

from benchmarks._harness import Row, options, print_table, report, spread
from benchmarks._machine import describe
from examples.digits import data, network
from partita.engine import Adagrad, Session
from partita.partitioner import Cluster, partition

BATCH, EPOCHS, RATE = 32, 20, 0.05
PRECISIONS: Final = ("float32", "bfloat16")


def main() -> None:
    """Trains, compares, reports."""
    asked = options(__doc__ or "", rounds=10)
    print(describe(), flush=True)
    found: dict[str, list[tuple[float, float, float]]] = {precision: [] for precision in PRECISIONS}
    for seed in asked.rounds:
        for precision, runs in found.items():
            runs.append(trained(precision, seed))
    lines = [
        (precision, *(spread([run[what] for run in runs], digits=4) for what in range(3)))
        for precision, runs in found.items()
    ]
    print_table("digits", ("precision", "training loss", "held-out loss", "held-out accuracy"), lines)
    report("bfloat16 beside float32", [row_of(found)], file=asked.json)


def row_of(found: dict[str, list[tuple[float, float, float]]]) -> Row:
    """Distance between the means of the held-out loss, in standard deviations of float32's seeds."""
    wide, narrow = ([run[1] for run in found[precision]] for precision in PRECISIONS)
    noise = statistics.stdev(wide)
    apart = abs(statistics.mean(narrow) - statistics.mean(wide))
    pairs = [noise / max(abs(a - b), 1e-9) for a, b in zip(wide, narrow, strict=True)]
    return Row(
        "digits: spread over seeds over the difference that bfloat16 makes (held-out loss)",
        noise / max(apart, 1e-9),
        1.0,
        min(pairs),
        max(pairs),
        f"means {statistics.mean(wide):.4f} and {statistics.mean(narrow):.4f}, "
        f"standard deviation over seeds {noise:.4f}",
    )


def trained(precision: str, seed: int) -> tuple[float, float, float]:
    """Training loss of the last epoch, held-out loss and accuracy."""
    training, held_out = data()
    plan = partition(network(), Cluster.local(1), batch=BATCH, precision=precision)
    arrays = {name: np.asarray(array) for name, array in training.items()}
    n = len(next(iter(arrays.values())))
    with Session(plan, seed, train=True, optimizer=Adagrad(RATE), hosts="inline") as session:
        for epoch in range(EPOCHS):
            order = np.random.default_rng([seed, epoch]).permutation(n)
            batches = [order[start : start + BATCH] for start in range(0, n - BATCH + 1, BATCH)]
            losses = [session.step({k: v[chosen] for k, v in arrays.items()}).loss for chosen in batches]
        last = {k: v[: plan.batch] for k, v in arrays.items()}
        parameters = session.step(last, collect=("parameters",)).vectors["parameters"]
    loss, accuracy = evaluated(precision, parameters, {k: np.asarray(v) for k, v in held_out.items()})
    return statistics.mean(losses), loss, accuracy


def evaluated(
    precision: str, parameters: dict[str, np.ndarray], held_out: dict[str, np.ndarray]
) -> tuple[float, float]:
    """Mean loss and accuracy on whole batches of the held-out examples."""
    n = len(next(iter(held_out.values())))
    plan = partition(network(), Cluster.local(1), batch=n, precision=precision)
    with Session(plan, parameters, hosts="inline") as session:
        step = session.step(held_out)
    return step.loss, step.correct / n


if __name__ == "__main__":
    main()
