"""A course project of 2016 on DistBelief: 74.8 million parameters, two functions, more and more workers.

    python -m examples.reproduce.course             (a minute)
    python -m examples.reproduce.course --train     trains the small network by `DistBelief`, for real

The first simulates its workers: real gradients of a small network, while times and bytes are those of the
project: 56 minutes for 10 epochs of 20,000 pictures on a machine, and all parameters over one server's link,
fetched and pushed every so many steps, in chunks of 512 KiB that take turns on the link; in the last row,
whole. The learning rate is the same for any number of workers: one that suits a single worker, and a low one.

Source: K. Yang and M. Farrell, "Distributed stochastic gradient descent", 2016.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median

from examples.reproduce.courses import course
from examples.reproduce.two_functions import Problem, first_parameters, gradients, outputs, pictures
from examples.reproduce.virtual import Hosts
from partita.engine import SGD, DistBelief, Downpour
from partita.engine.protocol.exchange.algorithm import Link
from partita.layers import Conv2D, Dense, MaxPool2D, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition

PARAMETERS, PICTURES, MINUTES, EPOCHS, BATCH = 74_770_901, 20_000, 56, 10, 100
GIGABITS = 2
"""Of a machine's link: assumed."""
CHUNK_BYTES = 512 * 1024
"""Of a message: what all workers fetch and push shares the server's link, a chunk each in turn."""
WORKERS = (1, 2, 4, 8, 16)
LONGEST_S = 10_800.0
"""Virtual seconds after which a run has failed; 60 by its learning rate, if that is less."""
EVERY = 10
"""Steps from one fetch, and one push, to the next: assumed."""


def network() -> Network:
    """Declares a network of about its size, on pictures of 200 x 300, in this project's layers."""
    net = Network("caltech")
    x = net.input("picture", shape=(200, 300, 3))
    for n, filters in enumerate((32, 64), 1):
        x = Conv2D(filters, kernel_size=5, padding=2, activation="relu", name=f"conv{n}")(x)
        x = MaxPool2D(2, name=f"pool{n}")(x)
    x = Dense(311, activation="relu", name="hidden")(x)
    net.loss = SoftmaxCrossEntropy()(Dense(101, name="scores")(x), net.target("object"))
    return net


def hosts(*, chunk_bytes: int = CHUNK_BYTES) -> Hosts:
    """Returns the project's machines: a minibatch takes what one of them took, with some spread."""
    step_s = MINUTES * 60 / EPOCHS / PICTURES * BATCH
    link = Link(0.5e-3, 8 / GIGABITS * 1e-9)
    n_bytes = 4 * PARAMETERS
    return Hosts(step_s=step_s, spread=0.3, n_bytes=n_bytes, link=link, server_chunk_bytes=chunk_bytes)


def times(
    problem: Problem, *, every: int, rate: float, chunk_bytes: int, target: float, seeds: int
) -> list[float]:
    """Returns the median minutes to the target for each number of workers."""
    found, machines = [], hosts(chunk_bytes=chunk_bytes)
    for workers in WORKERS:
        driver = Downpour(
            replicas=workers, optimizer=SGD(rate), fetch_every=every, push_every=every, run_ahead=every
        )
        runs = [
            course(driver, problem, machines, seed=seed, target=target, until_s=min(60 / rate, LONGEST_S))
            for seed in range(seeds)
        ]
        found.append(median(run.reached_s(target) for run in runs) / 60)
    return found


def main(given: Sequence[str] | None = None) -> None:
    """Prints the table, or trains."""
    parser = argparse.ArgumentParser(prog="python -m examples.reproduce.course")
    parser.add_argument("--train", action="store_true", help="train on processes of this machine")
    parser.add_argument(
        "--rate", type=float, help="the learning rate of every run; 0.05 and 0.003 if not given"
    )
    parser.add_argument("--target", type=float, default=0.93, help="the accuracy to be reached, from 0 to 1")
    parser.add_argument("--seeds", type=int, default=3, help="runs whose median counts")
    asked = parser.parse_args(given)
    if asked.train:
        training, held_out = pictures()
        model = DistBelief(outputs, gradients, machines=4).fit(first_parameters(), training, epochs=20)
        right = model.predict(held_out).argmax(1) == held_out["digit"]
        print(f"held-out accuracy: {right.mean():.3f}")
        return
    plan, assumed = partition(network(), Cluster.local(), batch=BATCH), hosts()
    print(f"this project's network: {plan.graph.n_parameters:,} parameters; theirs: {PARAMETERS:,}")
    print(
        f"a minibatch of {BATCH}: {plan.predicted_step_s:.2f} s predicted here, {assumed.step_s:.2f} s there"
    )
    print(f"minutes to {asked.target:.0%}" + " " * 18 + "".join(f"{n:8d}" for n in WORKERS) + "   workers")
    usual = ((1, 0.05), (EVERY, 0.05), (EVERY, 0.003))
    asked_for = usual if asked.rate is None else ((1, asked.rate), (EVERY, asked.rate))
    rows = [(every, rate, CHUNK_BYTES) for every, rate in asked_for]
    for every, rate, chunk_bytes in (*rows, (*asked_for[-1], 4 * PARAMETERS)):
        found = times(
            Problem(), every=every, rate=rate, chunk_bytes=chunk_bytes, target=asked.target, seeds=asked.seeds
        )
        minutes = "".join(f"{one:8.1f}" for one in found)
        whole = "" if chunk_bytes == CHUNK_BYTES else ", whole"
        print(f"rate {rate:5.3f}, every {every:2d} steps{whole:7}{minutes}", flush=True)


if __name__ == "__main__":
    main()
