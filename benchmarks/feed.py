"""Minibatches a second beside PyTorch's DataLoader, of the same work on the same data.

    python -m benchmarks.feed [--workers 2] [--minibatches 40]

Pictures of uint8, 32 x 32 x 3, in a mapped file are shuffled, cropped, mirrored and normalized, in
minibatches of 128: by the DataLoader example by example, as its data sets do. All take turns, and each is
compared with the DataLoader of as many workers.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from partita.engine import HorizontalFlip, Loader, Normalize, RandomCrop
from partita.engine.data.ahead import ReadAhead
from partita.engine.files.access import HostFiles
from partita.engine.run.data import run_data
from partita.engine.runtime.feed import Sampler
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition

EXAMPLES, SHAPE, BATCH, PADDING = 50_000, (32, 32, 3), 128, 4
MEAN, DEVIATION = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
ROUNDS = 3


class Pictures(torch.utils.data.Dataset[Any]):
    """What a user of the DataLoader writes: NumPy for each example."""

    def __init__(self, pictures: Any, labels: Any) -> None:
        self.pictures, self.labels = pictures, labels
        self.mean = np.asarray(MEAN, np.float32)
        self.deviation = np.asarray(DEVIATION, np.float32)

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        padded = np.pad(self.pictures[number], ((PADDING, PADDING), (PADDING, PADDING), (0, 0)))
        top, left = torch.randint(2 * PADDING + 1, (2,)).tolist()
        picture = padded[top : top + SHAPE[0], left : left + SHAPE[1]]
        if torch.rand(()) < 0.5:
            picture = picture[:, ::-1]
        found = (picture.astype(np.float32) / 255 - self.mean) / self.deviation
        return torch.from_numpy(found), int(self.labels[number])


def of_torch(data: Pictures, workers: int) -> Iterator[Any]:
    while True:
        yield from torch.utils.data.DataLoader(data, BATCH, shuffle=True, num_workers=workers)


def of_partita(pictures: Any, labels: Any, workers: int, *, processes: bool, folder: Path) -> Iterator[Any]:
    net = Network("feed")
    net.loss = SoftmaxCrossEntropy()(Dense(10)(net.input("picture", shape=SHAPE)), net.target("label"))
    plan = partition(net, Cluster.local(machines=1), batch=BATCH)
    transform = [RandomCrop(PADDING), HorizontalFlip(), Normalize(mean=MEAN, deviation=DEVIATION)]
    loader = Loader(
        {"picture": pictures, "label": labels}, transform=transform, workers=workers, processes=processes
    )
    found = run_data(
        plan.graph, loader, targets=True, precision="float32", batch=BATCH, folder=folder, here=True
    )
    assert found.prepared is not None
    ahead, sampler, unit = (
        ReadAhead(found.prepared, HostFiles()),
        Sampler(examples=EXAMPLES, batch=BATCH, seed=0),
        0,
    )
    try:
        while True:
            batch = ahead.take(sampler.padded(unit), sampler.epoch(unit))
            following = range(unit + 1, unit + 1 + ahead.depth)
            ahead.announce([(sampler.padded(one), sampler.epoch(one)) for one in following])
            yield batch
            unit += 1
    finally:
        ahead.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minibatches", type=int, default=40)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        random = np.random.default_rng(0)
        np.save(folder / "pictures.npy", random.integers(0, 256, (EXAMPLES, *SHAPE), np.uint8))
        pictures, labels = np.load(folder / "pictures.npy", mmap_mode="r"), random.integers(0, 10, EXAMPLES)
        data = Pictures(pictures, labels)
        many = given.workers
        makers: dict[str, Callable[[], Iterator[Any]]] = {
            "DataLoader, in the loop": lambda: of_torch(data, 0),
            f"DataLoader, {many} processes": lambda: of_torch(data, many),
            "Loader, 1 thread": lambda: of_partita(pictures, labels, 1, processes=False, folder=folder),
            f"Loader, {many} threads": lambda: of_partita(
                pictures, labels, many, processes=False, folder=folder
            ),
            f"Loader, {many} processes": lambda: of_partita(
                pictures, labels, many, processes=True, folder=folder
            ),
        }
        streams = {name: make() for name, make in makers.items()}
        rates: dict[str, list[float]] = {name: [] for name in streams}
        for stream in streams.values():
            for _ in range(5):
                next(stream)
        for _ in range(ROUNDS):
            for name, stream in streams.items():
                began = time.perf_counter()
                for _ in range(given.minibatches):
                    next(stream)
                rates[name].append(given.minibatches * BATCH / (time.perf_counter() - began))
        for stream in streams.values():
            stream.close()  # type: ignore[attr-defined]
        references = {
            "1": rates["DataLoader, in the loop"],
            str(many): rates[f"DataLoader, {many} processes"],
        }
        for name, found in rates.items():
            reference = references["1" if name.endswith(("loop", "1 thread")) else str(many)]
            ratio = float(np.median(found) / np.median(reference))
            print(f"{name:26} {np.median(found):9,.0f} examples/s   x {ratio:.2f}")


if __name__ == "__main__":
    main()
