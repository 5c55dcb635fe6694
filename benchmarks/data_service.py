"""Steps of a host that fetches its examples over the network, beside those of one that maps the file.

    python -m benchmarks.data_service [--megabytes 400] [--epochs 3]

A host on "another machine" is a worker of a pool with a network namespace and a /tmp of its own (root only).
Printed are the steps per second of each epoch, and the rate at which one host reads the whole set.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._namespaces import GBIT, network, why_not
from partita.engine import SGD, Downpour, Pool, train
from partita.engine.run.metrics import Record
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition
from tests.launch.pool.helpers import Program, new_keys, worker

FEATURES, CLASSES, BATCH = 784, 10, 128
LINK = 20 * GBIT  # what the two cores can carry is less


def net(hidden: int) -> Network:
    made = Network("served")
    image = made.input("image", shape=(FEATURES,))
    inside = Dense(hidden, activation="relu")(image)
    made.loss = SoftmaxCrossEntropy()(Dense(CLASSES)(inside), made.target("digit"))
    return made


def epochs_of(on: Pool | None, data: dict[str, Any], hidden: int, epochs: int) -> list[float]:
    """Returns the steps per second of each epoch."""
    plan = partition(net(hidden), Cluster.local(machines=1), batch=BATCH)
    times: list[tuple[int, float]] = []

    def note(record: Record) -> None:
        times.append((record.step, time.perf_counter()))

    train(
        plan, data, driver=Downpour(optimizer=SGD(0.01)), epochs=epochs, on=on, show="nothing", on_record=note
    )
    steps = -(-len(data["digit"]) // BATCH)
    found = []
    for epoch in range(epochs):
        within = [one for one in times if epoch * steps <= one[0] <= (epoch + 1) * steps]
        (first, began), (last, ended) = within[0], within[-1]
        found.append((last - first) / max(ended - began, 1e-9))
    return found


@contextmanager
def pool() -> Iterator[Pool]:
    """A pool of one worker, with a network and a /tmp of its own."""
    apart = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /tmp && exec "$@"', "sh")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, network(1, bits_per_s=LINK) as made:
        keys = new_keys(Path(folder) / "keys")
        with Program("pool", "serve", made.listen, "--keys", str(keys)) as serve:
            serve.wait_for("serves a pool at")
            address = serve.said[-1].split()[4]
            inside = (*made.places[0].command, *apart)
            with worker(address, keys, "far", "--resources", "cpu=2", inside=inside):
                serve.wait_for("worker 'far' joined")
                yield Pool(address, keys=keys)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    asked = parser.parse_args()
    reason = why_not()
    if reason is not None:
        raise SystemExit(reason)
    examples = asked.megabytes * 10**6 // (4 * FEATURES)
    random = np.random.default_rng(0)
    data = {
        "image": random.random((examples, FEATURES), np.float32),
        "digit": random.integers(0, CLASSES, examples),
    }
    near = epochs_of(None, data, asked.hidden, asked.epochs)
    with pool() as far:
        served = epochs_of(far, data, asked.hidden, asked.epochs)
    again = epochs_of(None, data, asked.hidden, asked.epochs)
    print(f"{asked.megabytes} MB, {examples} examples, steps per second by epoch")
    for name, found in (("mapped", near), ("fetched", served), ("mapped", again)):
        print(f"{name:8}", " ".join(f"{one:8.0f}" for one in found))


if __name__ == "__main__":
    main()
