"""Training by increasing resolution: digits of 8, 16 and 32 pixels, against 32 pixels from the start.

    python -m examples.reproduce.resolution [SEEDS] [CIFAR]        (two minutes; 5 seeds if not given)

Scikit-learn's digits are enlarged to 32 x 32 pixels by cubic interpolation, moved by up to two pixels in each
direction, and seen through noise. CIFAR, a folder with `data_batch_1.bin` and `test_batch.bin` (the binary
version of CIFAR-10), replaces them. The network pools over all places, so that its parameters are the same at
each resolution. Behind its first filters it averages squares of as many pixels as make maps of 8 x 8, so that
the next filters see strokes of the same size at each resolution; the ablation leaves this out, and carries
filters to strokes of twice their size. The program prints the seconds of processor time of one thread until
the wanted accuracy on held-out pictures is reached, without evaluations; it compiles before it measures.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from scipy.ndimage import zoom
from sklearn.datasets import load_digits

from partita.engine import Adam, Run, Session, evaluate, shrink_pictures
from partita.layers import (
    AveragePool2D,
    Conv2D,
    Dense,
    GlobalAveragePool,
    Network,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, Plan, partition

FULL, BATCH, MOST_EPOCHS, WANTED = 32, 32, 24, 0.90
STAGES = {8: 5, 16: 3}
"""Epochs at smaller resolutions; the rest is at full resolution."""


class Pictures(NamedTuple):
    """Pictures `[example, 32, 32, channels]` and labels, to train on and held out."""

    training: np.ndarray
    labels: np.ndarray
    held_out: np.ndarray
    held_out_labels: np.ndarray

    def at(self, size: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The training pictures of a size, and the held-out data of this size."""
        held_out = {"picture": shrink_pictures(self.held_out, size), "label": self.held_out_labels}
        return shrink_pictures(self.training, size), held_out


def digits(seed: int) -> Pictures:
    """Scikit-learn's digits, enlarged, moved and noisy; a fifth is held out."""
    found, draw = load_digits(), np.random.default_rng(seed)
    order = draw.permutation(len(found.target))
    large = zoom(found.images[order] / 16, (1, 4, 4), order=3)
    moves = draw.integers(-2, 3, (len(large), 2))
    moved = [np.roll(one, tuple(by), (0, 1)) for one, by in zip(large, moves, strict=True)]
    pictures = (np.stack(moved) + draw.normal(0, 0.3, large.shape)).astype(np.float32)[..., None]
    labels, fifth = found.target[order], len(order) // 5
    return Pictures(pictures[fifth:], labels[fifth:], pictures[:fifth], labels[:fifth])


def cifar(folder: Path, seed: int) -> Pictures:
    """The first 10,000 pictures of CIFAR-10's binary version, and the first 2,000 of its test."""
    found = []
    for name, count in (("data_batch_1.bin", 10_000), ("test_batch.bin", 2_000)):
        rows = np.fromfile(folder / name, np.uint8).reshape(-1, 1 + 3 * FULL * FULL)[:count]
        rows = rows[np.random.default_rng(seed).permutation(len(rows))]
        pictures = rows[:, 1:].reshape(-1, 3, FULL, FULL).transpose(0, 2, 3, 1)
        found += [(pictures / 127.5 - 1).astype(np.float32), rows[:, 0].astype(np.int64)]
    return Pictures(*found)


def plan(size: int, channels: int, *, scaled: bool) -> Plan:
    """Three layers of filters, and the means of the last one's maps; `scaled`: with maps of 8 x 8."""
    net = Network("sizes")
    picture = net.input("picture", shape=(size, size, channels))
    maps = Conv2D(16, 3, padding="same", activation="relu", name="conv1")(picture)
    square = size // 8 if scaled else FULL // 8
    if square > 1:
        maps = AveragePool2D(square, stride=square, name="averaged")(maps)
    maps = Conv2D(16, 3, padding="same", activation="relu", name="conv2")(maps)
    maps = Conv2D(32, 3, padding="same", activation="relu", name="conv3")(maps)
    scores = Dense(10, name="scores")(GlobalAveragePool(name="pooled")(maps))
    net.loss = SoftmaxCrossEntropy()(scores, net.target("label"))
    return partition(net, Cluster.local(), batch=BATCH)


def seconds_to(pictures: Pictures, sizes: list[int], seed: int, *, scaled: bool = True) -> float:
    """Processor seconds until the wanted accuracy; infinite if it is not reached.

    Args:
        pictures: the data.
        sizes: of each epoch.
        seed: of the first parameters, and of the order.
        scaled: see `plan`.
    """
    draw, spent, parameters = np.random.default_rng(seed), 0.0, seed
    for size in dict.fromkeys(sizes):
        one, (training, held_out) = plan(size, pictures.training.shape[-1], scaled=scaled), pictures.at(size)
        with Session(one, parameters, train=True, optimizer=Adam(0.005), hosts="inline") as session:
            for _ in range(sizes.count(size)):
                order, began = draw.permutation(len(training)), time.process_time()
                for first in range(0, len(order) - BATCH + 1, BATCH):
                    some = order[first : first + BATCH]
                    collect = ("parameters",) if first + 2 * BATCH > len(order) else ()
                    batch = {"picture": training[some], "label": pictures.labels[some]}
                    step = session.step(batch, collect=collect)
                spent += time.process_time() - began
                parameters = step.vectors["parameters"]
                found = evaluate(Run(one, parameters), held_out, hosts="inline", show="nothing")
                if size == FULL and found.accuracy >= WANTED:
                    return spent
    return float("inf")


def main() -> None:
    """Measures both ways for each seed, in turn, and prints the table."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    full = [FULL] * MOST_EPOCHS
    stages = [size for size, epochs in STAGES.items() for _ in range(epochs)]
    staged = [*stages, *full[len(stages) :]]
    few = digits(0)
    few = Pictures(*(array[: 2 * BATCH] for array in few))
    for size in (*STAGES, FULL):  # compiles
        for scaled in (True, False):
            seconds_to(few, [size], 0, scaled=scaled)
    print(f"processor seconds to an accuracy of {WANTED:.2f} at {FULL} pixels")
    print("seed  by resolution  full from the start  ratio  by resolution, not scaled")
    ratios = []
    for seed in range(seeds):
        pictures = digits(seed) if folder is None else cifar(folder, seed)
        fast, slow = seconds_to(pictures, staged, seed), seconds_to(pictures, full, seed)
        other = seconds_to(pictures, staged, seed, scaled=False)
        ratios.append(slow / fast)
        print(f"{seed:4}  {fast:13.1f}  {slow:19.1f}  {ratios[-1]:5.2f}  {other:25.1f}", flush=True)
    deviation = stdev(ratios) if seeds > 1 else 0.0
    print(f"full resolution from the start takes {fmean(ratios):.2f} ± {deviation:.2f} times as long")


if __name__ == "__main__":
    main()
