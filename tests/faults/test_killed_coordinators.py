"""SIGKILL of the coordinator under Downpour: what goes on after it counts every step once."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest

from tests.faults import counting
from tests.faults.helpers import Command

pytestmark = pytest.mark.slow


EPOCHS = 200
OPTIONS = [
    *("--batch", "4", "--epochs", str(EPOCHS), "--optimizer", "sgd", "--learning-rate", "0.125"),
    *("--checkpoints", "kept", "--checkpoint-every", "0.2", "--strategy", "balanced", "--resume"),
]


def command(folder: Path, *, machines: int, replicas: int, shards: int) -> Command:
    hosts = {"--machines": machines, "--replicas": replicas, "--shards": shards}
    sizes = [word for name, number in hosts.items() for word in (name, str(number))]
    return Command("train", str(Path(counting.__file__)), *sizes, *OPTIONS, folder=folder)


def assert_counted_once(folder: Path) -> None:
    counts = counting.counts(folder / "kept", rate=0.125)
    assert np.abs(counts - EPOCHS).max() < 0.01, np.unique(counts.round())


def kill_at(folder: Path, *, checkpoint: int, wait_s: float, **hosts: int) -> bool:
    """Kills the command some time after a checkpoint of this number; returns whether it still ran."""
    with command(folder, **hosts) as run:
        while run.is_running and not any((folder / "kept").glob(f"{checkpoint:08d}-*/manifest.json")):
            pass
        try:
            run.wait(wait_s)
        except TimeoutError:
            run.kill()
            run.end()
            return True
    return False


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_step_counts_once_wherever_the_coordinator_is_killed(tmp_path: Path, seed: int) -> None:
    """With as many shards as before, and any number of replicas."""
    draw = random.Random(seed)
    machines, shards = draw.choice([(1, 2), (2, 1), (2, 3)])
    kills, checkpoint = 0, 1
    for _ in range(4):
        hosts = {"machines": machines, "shards": shards, "replicas": draw.choice([1, 2, 3])}
        kills += kill_at(tmp_path, checkpoint=checkpoint, wait_s=draw.uniform(0.0, 0.4), **hosts)
        made = [int(path.parent.name[:8]) for path in (tmp_path / "kept").glob("*/manifest.json")]
        checkpoint = max(made) + 1
    assert kills >= 2, "it was over before it was killed"
    with command(tmp_path, machines=machines, shards=shards, replicas=2) as run:
        code, _ = run.end()
        assert code == 0, run.said
    assert any(re.search(r"resumed from checkpoint \d+ at step", line) for line in run.said)
    assert_counted_once(tmp_path)
