"""Small runs of every kind, whose files are kept for each format of checkpoints, and what they go on to.

    python tests/parameters/kept_runs.py tests/parameters/data/format-N

makes the files with the version of Partita that is installed, before its format changes. For each run, a
folder of its name has the checkpoints, and `numbers.safetensors` the numbers that this version reads in the
newest one, and the parameters with which the resumed run ends.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors.numpy

from partita.engine import (
    LBFGS,
    SGD,
    Adagrad,
    Adam,
    AllReduce,
    Downpour,
    InverseTime,
    Run,
    Sandblaster,
    train,
)
from partita.engine.parameters import Checkpoint, Checkpoints, Journal
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, partition

DATA: Final = Path(__file__).parent / "data"
EXAMPLES: Final = 36
METHOD: Final = LBFGS(history=3, max_iterations=12)
RUNS: Final[dict[str, Any]] = {
    "downpour-sgd": Downpour(shards=2, optimizer=SGD(0.1)),
    "downpour-adagrad": Downpour(shards=3, optimizer=Adagrad(0.1)),
    "downpour-adam": Downpour(shards=1, optimizer=Adam(InverseTime(0.02, steps=10))),
    "downpour-log": Downpour(shards=2, optimizer=SGD(0.1), durability="log"),
    "sandblaster-lbfgs": Sandblaster(METHOD, shards=2, portion=6, l2=0.01),
    "all-reduce-adam": AllReduce(replicas=2, optimizer=Adam(0.02)),
    "all-reduce-sharded": AllReduce(replicas=2, optimizer=Adagrad(0.1), shard_optimizer=True),
}
"""Drivers by the names of their folders. One replica of Downpour goes on with the same numbers."""


def plan_of_run(*, machines: int = 2) -> Plan:
    """The plan of each run: six inputs, a hidden layer and three scores on some machines."""
    net = Network("kept")
    image = net.input("image", shape=(6,))
    scores = Dense(3, name="scores")(Dense(5, activation="tanh", name="hidden")(image))
    net.loss = SoftmaxCrossEntropy()(scores, net.target("digit"))
    return partition(net, Cluster.local(machines=machines), batch=6, strategy="balanced")


def shapes_of_run() -> dict[str, tuple[int, ...]]:
    """Shape of every parameter, by name."""
    return {name: one.shape for name, one in plan_of_run().graph.parameters.items()}


def data_of_run() -> dict[str, np.ndarray]:
    """Examples of three classes, by arithmetic alone."""
    n = np.arange(EXAMPLES)
    image = np.sin(n[:, None] * (1.0 + np.arange(6)) + n[:, None] % 3 * np.arange(6)).astype(np.float32)
    return {"image": image, "digit": n % 3}


def train_run(driver: Any, folder: Path, *, plan: Plan | None = None, epochs: int = 2, **more: Any) -> Run:
    """Trains with checkpoints in a folder; a method to its last iteration."""
    passes = {} if isinstance(driver, Sandblaster) else {"epochs": epochs}
    arguments = {"show": "nothing", "checkpoints": folder} | passes | more
    return train(plan or plan_of_run(), data_of_run(), driver=driver, **arguments)


def resumed(name: str, folder: Path, *, show: str = "nothing") -> Run:
    """Goes on with a kept run in a copy of its files: an epoch more, or to the method's last iteration."""
    return train_run(RUNS[name], folder, epochs=3, resume=True, show=show)


def begin(name: str, folder: Path) -> None:
    """Runs two epochs; a method's run is as if killed two answers after a checkpoint, one with a log as if
    killed some steps after it.
    """
    driver = RUNS[name]
    if driver.durability == "log":
        with tempfile.TemporaryDirectory() as temporary:
            copy = Path(temporary) / "copy"
            train_run(driver, folder, epochs=1)
            train_run(driver, folder, epochs=3, resume=True, on_record=lambda record: copied(folder, copy))
            shutil.rmtree(folder)
            shutil.copytree(copy, folder)
        return
    train_run(driver, folder, checkpoint_every_s=0.01 if isinstance(driver, Sandblaster) else 30.0)
    if not isinstance(driver, Sandblaster):
        return
    checkpoints, journal = Checkpoints(folder), Journal.read(folder / "journal")
    *newer, oldest = checkpoints.complete()
    for number in newer:
        shutil.rmtree(checkpoints.path(number))
    assert journal is not None
    position = checkpoints.open(oldest, shapes_of_run()).manifest.position
    assert position is not None and 2 < position < len(journal) - 2, (position, len(journal))
    cut = Journal.create(folder / "journal", journal.header)
    for entry in journal.entries[: position + 2]:
        cut.append(entry.index, entry.digest, entry.scalars)
    cut.close()


def copied(folder: Path, copy: Path) -> None:
    """Copies the files of a run that goes on, once, when its logs have some records."""
    until = time.monotonic() + 1.0
    while not copy.exists() and time.monotonic() < until:
        logs = [path.stat().st_size for path in folder.glob("log-*/*.log")]
        if len(logs) == 2 and min(logs) > 2000:
            shutil.copytree(folder, copy)


def numbers_of(found: Checkpoint) -> dict[str, np.ndarray]:
    """Values and state of every parameter, as "values/NAME" and "state.NAME/NAME"."""
    kinds = ("values", *(f"state.{name}" for name in found.state_names))
    return {f"{kind}/{name}": array for kind in kinds for name, array in found.parameters(kind).items()}


def keep(name: str, folder: Path) -> None:
    """Makes the files of a run."""
    begin(name, folder)
    for lock in folder.glob(".partita.*"):
        lock.unlink()
    found = Checkpoints(folder).latest(shapes_of_run())
    assert found is not None, name
    numbers = numbers_of(found)
    with tempfile.TemporaryDirectory() as temporary:
        copy = shutil.copytree(folder, Path(temporary) / "copy")
        after = resumed(name, copy).parameters
    numbers |= {f"resumed/{key}": array for key, array in after.items()}
    safetensors.numpy.save_file(numbers, folder / "numbers.safetensors")


if __name__ == "__main__":
    for each in RUNS:
        keep(each, Path(sys.argv[1]) / each)
