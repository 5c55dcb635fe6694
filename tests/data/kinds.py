"""One small data set, as each kind of thing that a user may hand over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from partita.engine import Loader
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition
from partita.partitioner.plan import Plan

Array = npt.NDArray[Any]

EXAMPLES = 30
BATCH = 8
random = np.random.default_rng(5)
PICTURES: Array = random.integers(0, 256, (EXAMPLES, 2, 3, 1)).astype(np.uint8)
DIGITS: Array = random.integers(0, 3, EXAMPLES)
ARRAYS: dict[str, Array] = {"picture": PICTURES.astype(np.float32), "digit": DIGITS}


def network() -> Network:
    net = Network("kinds")
    scores = Dense(3)(net.input("picture", shape=(2, 3, 1)))
    net.loss = SoftmaxCrossEntropy()(scores, net.target("digit"))
    return net


def plan(machines: int = 1) -> Plan:
    strategy = "automatic" if machines == 1 else "balanced"
    return partition(network(), Cluster.local(machines=machines), batch=BATCH, strategy=strategy)


def halved(batch: dict[str, Array]) -> dict[str, Array]:
    return batch | {"picture": batch["picture"].astype(np.float32) / 2}


class Pairs(torch.utils.data.Dataset[Any]):
    """A data set of tuples. It fails at one example, if told."""

    def __init__(self, fails_at: int = -1) -> None:
        self.fails_at = fails_at

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        if number == self.fails_at:
            raise KeyError("no such picture")
        return torch.from_numpy(PICTURES[number]), int(DIGITS[number])


class Ordered(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({"digit": DIGITS[n], "picture": PICTURES[n]} for n in range(EXAMPLES))


def pairs() -> Iterator[tuple[Array, int]]:
    for picture, digit in zip(PICTURES, DIGITS, strict=True):
        yield picture, int(digit)


def shard(number: int) -> Iterator[tuple[Array, int]]:
    """Shards of 10, 11 and 9 examples."""
    first, last = ((0, 10), (10, 21), (21, 30))[number]
    return ((PICTURES[n], int(DIGITS[n])) for n in range(first, last))


def npz_shards(folder: Path, *, compressed: bool = False) -> str:
    save = np.savez_compressed if compressed else np.savez
    for number, (first, last) in enumerate(((0, 10), (10, 21), (21, 30))):
        save(folder / f"{number}.npz", picture=PICTURES[first:last], digit=DIGITS[first:last])
    return str(folder / "*.npz")


def random_access(folder: Path) -> dict[str, Any]:
    """Kinds that are shuffled as arrays are: a run has the same bits."""
    np.save(folder / "picture.npy", PICTURES)
    mapped = np.load(folder / "picture.npy", mmap_mode="r")
    return {
        "uint8": {"picture": PICTURES, "digit": DIGITS.astype(np.int8)},
        "memmap": Loader({"picture": mapped, "digit": DIGITS}, workers=2),
        "torch data set": Pairs(),
        "tensors": torch.utils.data.TensorDataset(torch.from_numpy(PICTURES), torch.from_numpy(DIGITS)),
        "torch loader": torch.utils.data.DataLoader(Pairs(), batch_size=BATCH, shuffle=True),
        "generator": pairs(),
        "npz": npz_shards(folder),
    }
