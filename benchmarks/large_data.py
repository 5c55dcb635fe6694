"""A data set that is far larger than memory: how much memory and disk a training over it takes.

    python -m benchmarks.large_data [--gib 20] [--steps 0] [--real] [--replicas 1] [--limit-mib 1024]

The data is a mapped file of pictures of uint8, 256 x 256 x 3. The file is sparse, so that it takes no disk;
with `--real` its numbers are written first. Every example is read once. The memory of all processes of the
run is summed (PSS: shared pages count once), and compared with that of a run over a few of the same pictures.
The command fails where the peak beyond that, or the run's own files on the disk, reach the limit.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from partita.engine import Downpour, Loader, Run, train
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition

SHAPE = (256, 256, 3)
BATCH = 32
FEW = 4 * BATCH
EVERY_S = 0.2


class Watch(threading.Thread):
    """The peak of the memory of this process and all it started, and of the files in a folder, in bytes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.memory = self.disk = 0
        self._folder, self._ended = folder, threading.Event()

    def run(self) -> None:
        while not self._ended.wait(EVERY_S):
            own = psutil.Process()
            self.memory = max(self.memory, sum(map(_pss, [own, *own.children(recursive=True)])))
            self.disk = max(self.disk, sum(map(_on_disk, self._folder.rglob("*"))))

    def end(self) -> None:
        self._ended.set()
        self.join()


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:  # it has just ended
        return 0


def _on_disk(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:  # it has just been removed
        return 0


@contextmanager
def pictures(folder: Path, n_bytes: int, *, real: bool) -> Iterator[dict[str, Any]]:
    """Makes a file of pictures, and labels in memory."""
    count = n_bytes // int(np.prod(SHAPE))
    path = folder / "pictures.raw"
    with path.open("wb") as file:
        if real:
            random = np.random.default_rng(0)
            for _ in range(count):
                file.write(random.integers(0, 256, SHAPE, np.uint8).tobytes())
        else:
            file.truncate(count * int(np.prod(SHAPE)))
    yield {
        "picture": np.memmap(path, np.uint8, mode="r", shape=(count, *SHAPE)),
        "label": np.random.default_rng(1).integers(0, 10, count).astype(np.uint8),
    }


def small(batch: dict[str, Any]) -> dict[str, Any]:
    """Every fourth pixel, from 0 to 1."""
    return batch | {"picture": batch["picture"][:, ::4, ::4].astype(np.float32) / 255}


def trained(data: dict[str, Any], replicas: int) -> tuple[Run, float]:
    net = Network("large_data")
    net.loss = SoftmaxCrossEntropy()(Dense(10)(net.input("picture", shape=(64, 64, 3))), net.target("label"))
    plan = partition(net, Cluster.local(machines=1), batch=BATCH)
    began = time.perf_counter()
    run = train(plan, Loader(data, transform=small), driver=Downpour(replicas=replicas), epochs=1)
    return run, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=20.0)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--limit-mib", type=float, default=1024.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as data_folder, tempfile.TemporaryDirectory() as own:
        tempfile.tempdir = own  # of this process, and of those that it starts
        os.environ["TMPDIR"] = own
        n_bytes = int(given.gib * (1 << 30))
        with pictures(Path(data_folder), n_bytes, real=given.real) as data:
            peaks = []
            for some in ({name: np.array(array[:FEW]) for name, array in data.items()}, data):
                watch = Watch(Path(own))
                watch.start()
                run, seconds = trained(some, given.replicas)
                watch.end()
                peaks.append(watch.memory)
                read = len(some["label"]) * int(np.prod(SHAPE))
                rate = len(some["label"]) / seconds
                print(
                    f"{read / (1 << 30):7.2f} GiB of data, {sum(run.steps):,} steps, {seconds:.0f} s, "
                    f"{rate:,.0f} examples/s: peak memory {watch.memory >> 20:,} MiB, "
                    f"files {watch.disk >> 20:,} MiB"
                )
            assert sum(run.steps) == -(-len(data["label"]) // BATCH), "every example comes once"
            beyond = (peaks[1] - peaks[0]) / (1 << 20)
            print(f"beyond the network and its processes: {beyond:,.0f} MiB")
            sys.exit(beyond >= given.limit_mib or watch.disk / (1 << 20) >= given.limit_mib)


if __name__ == "__main__":
    main()
