"""SIGKILL of shards and their backups while training goes on: nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from partita.engine import SGD, Downpour, Run, train
from partita.engine.protocol.coordinator_effects import Progress
from partita.partitioner import Cluster, partition
from tests.faults import toy
from tests.faults.helpers import Witness, hosts_of
from tests.faults.oracle import Oracle

SAME = "have the same"


def train_toy(
    *,
    replicas: int = 1,
    shards: int = 2,
    epochs: int = 60,
    folder: Path | None = None,
    mode: str = "replicated",
) -> Run:
    plan = partition(toy.network(), Cluster.local(machines=1), batch=8)
    driver = Downpour(replicas=replicas, shards=shards, optimizer=SGD(0.05), durability=mode)
    return train(plan, toy.data(), driver=driver, epochs=epochs, checkpoints=folder, checkpoint_every_s=60.0)


def same_bits(a: Run, b: Run) -> bool:
    return all(np.array_equal(a.parameters[name], b.parameters[name]) for name in a.parameters)


def killing(*names: str) -> Callable[[], None]:
    def kill() -> None:
        hosts = hosts_of(os.getpid())
        for name in names:
            hosts[name].kill()

    return kill


def test_a_shard_that_is_killed_goes_on_from_its_backup_with_the_same_bits(witness: Witness) -> None:
    """One replica alone is sequential: a push that is lost, doubled or late would change the bits."""
    straight = train_toy(mode="checkpoint", epochs=40, shards=1)
    witness.when_said(f"shard 0 and backup 0 {SAME}", lambda: None)
    witness.when(lambda seen: seen.step > 40, killing("shard 0"))
    run = train_toy(epochs=40, shards=1)
    assert witness.index(
        "shard 0: its process was ended by SIGKILL; goes on from backup 0, and nothing is lost"
    )
    assert run.lost_pushes == 0 and same_bits(straight, run)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_shards_and_backups_killed_in_turn_cost_nothing(witness: Witness, replicas: int) -> None:
    epochs = 1200
    straight = train_toy(mode="checkpoint", epochs=epochs, replicas=replicas)
    witness.when_said(f"shard 0 and backup 0 {SAME}", lambda: None)
    for victim in ("shard 0", "backup 0", "shard 0", "shard 0", "backup 0"):
        witness.when(lambda seen: seen.step > 0, killing(victim))
        witness.when_said(f"shard 0 and backup 0 {SAME}", lambda: None)
    run = train_toy(epochs=epochs, replicas=replicas)
    assert run.lost_pushes == 0 and sum(run.steps) == sum(straight.steps)
    assert replicas > 1 or same_bits(straight, run)


@pytest.mark.slow
@pytest.mark.parametrize("victims", [("shard 0", "backup 0"), ("backup 0", "shard 0", "part 0.0")])
def test_both_copies_killed_together_go_back_and_the_loss_is_counted(
    witness: Witness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victims: tuple[str, ...]
) -> None:
    (tmp_path / "log").mkdir()
    oracle = Oracle.watching(tmp_path / "log", monkeypatch.setattr)
    witness.when_said(f"shard 0 and backup 0 {SAME}", lambda: None)
    witness.when(lambda seen: seen.step > 200, killing(*victims))
    run = train_toy(epochs=300, replicas=2, folder=tmp_path / "runs")
    lost = oracle.acknowledged - oracle.held(tmp_path / "runs")
    assert lost, "nothing was lost: the test shows nothing"
    assert run.lost_pushes == len(lost)


@pytest.mark.slow
def test_a_shard_that_stops_is_replaced_from_its_backup(witness: Witness) -> None:
    witness.when_said(f"shard 0 and backup 0 {SAME}", lambda: None)
    witness.when(lambda seen: seen.step > 40, lambda: hosts_of(os.getpid())["shard 0"].suspend())
    run = train_toy(epochs=300, replicas=2)
    assert witness.index("goes on from backup 0") and run.lost_pushes == 0


@pytest.mark.slow
def test_takeover_takes_less_than_three_seconds(witness: Witness) -> None:
    at: dict[str, float] = {}

    def kill() -> None:
        at["killed"] = time.monotonic()
        killing("shard 0")()

    def note(what: str) -> Callable[[], None]:
        return lambda: at.setdefault(what, time.monotonic())

    def goes_on(seen: Progress) -> bool:
        return seen.step > at["step"]

    def killed_at(seen: Progress) -> bool:
        at["step"] = seen.step + 50
        return seen.step > 40

    witness.when_said(f"shard 0 and backup 0 {SAME}", lambda: None)
    witness.when(killed_at, kill)
    witness.when_said(f"shard 0 and backup 0 {SAME}", note("both"))
    witness.when(goes_on, note("goes on"))
    train_toy(epochs=400)
    print(
        {what: round(when - at["killed"], 2) for what, when in at.items() if what not in ("step", "killed")}
    )
    assert at["goes on"] - at["killed"] < 3.0
