"""Reported cost of failures, against an oracle that logs every acknowledgement."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from partita.engine import SGD, Downpour, Run, train
from partita.engine.protocol.coordinator_effects import Progress
from partita.partitioner import Cluster, partition
from tests.faults import toy
from tests.faults.helpers import Witness, hosts_of
from tests.faults.oracle import Oracle


@pytest.fixture
def oracle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Oracle:
    folder = tmp_path / "log"
    folder.mkdir()
    return Oracle.watching(folder, monkeypatch.setattr)


def train_toy(folder: Path, *, epochs: int = 150, checkpoint_every_s: float = 0.7) -> Run:
    plan = partition(toy.network(), Cluster.local(machines=1), batch=8)
    driver = Downpour(replicas=2, shards=2, optimizer=SGD(0.05))
    return train(
        plan,
        toy.data(),
        driver=driver,
        epochs=epochs,
        checkpoints=folder,
        checkpoint_every_s=checkpoint_every_s,
    )


def kill(*names: str) -> None:
    hosts = hosts_of(os.getpid())
    for name in names:
        hosts[name].kill()


def assert_counted(run: Run, oracle: Oracle, folder: Path) -> None:
    lost = oracle.acknowledged - oracle.held(folder)
    assert lost, "nothing was lost: the test shows nothing"
    assert run.lost_pushes == len(lost)


@pytest.mark.slow
def test_what_a_part_took_to_its_grave_is_counted_when_its_shard_dies_too(
    witness: Witness, oracle: Oracle, tmp_path: Path
) -> None:
    witness.when(lambda seen: seen.source == "part 0.0" and seen.step > 60, partial(kill, "part 0.0"))
    witness.when_said("replica 0 begins again", lambda: kill("shard 1"))
    folder = tmp_path / "runs"
    run = train_toy(folder, checkpoint_every_s=60.0)  # the shard comes back with nothing
    assert_counted(run, oracle, folder)
    lost = oracle.acknowledged - oracle.held(folder)
    assert any(push[:3] == ("shard 1", "part 0.0", 0) for push in lost), "of the process that died first"


@pytest.mark.slow
@pytest.mark.parametrize("victims", [("part 0.0", "shard 0"), ("part 0.0", "part 1.0", "shard 0", "shard 1")])
def test_what_dies_together_is_counted(
    witness: Witness, oracle: Oracle, tmp_path: Path, victims: tuple[str, ...]
) -> None:
    def well_on(seen: Progress) -> bool:
        return seen.source == "part 0.0" and seen.step > 400 and any(tmp_path.rglob("manifest.json"))

    witness.when(well_on, lambda: kill(*victims))
    run = train_toy(tmp_path / "runs", epochs=400)
    assert_counted(run, oracle, tmp_path / "runs")


@pytest.mark.slow
def test_deaths_one_after_another_are_counted(witness: Witness, oracle: Oracle, tmp_path: Path) -> None:
    rounds = ("part 0.0",), ("shard 0",), ("part 1.0", "shard 1"), ("shard 0", "shard 1", "part 0.0")
    for n, victims in enumerate(rounds):
        witness.when(
            lambda seen, n=n: seen.source == "part 1.0" and seen.step > 400 * (n + 1),  # type: ignore[misc]
            partial(kill, *victims),
        )
    run = train_toy(tmp_path / "runs", epochs=400)
    assert_counted(run, oracle, tmp_path / "runs")
