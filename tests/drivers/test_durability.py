"""The setting `durability` of drivers: what it says when a run starts, and what it writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from partita.engine import Downpour, Log, Sandblaster, train
from partita.engine.cli.drivers import make_driver
from partita.engine.methods import LBFGS
from partita.partitioner import Cluster, partition
from tests.drivers.conftest import run_on_threads
from tests.faults import toy


def synced_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files whose data was forced to the disk, from now on."""
    names: list[str] = []
    sync = os.fdatasync

    def noted(file: int) -> None:
        names.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
        sync(file)

    monkeypatch.setattr(os, "fdatasync", noted)
    return names


@pytest.mark.parametrize(
    ("durability", "says"),
    [
        (
            "checkpoint",
            "durability: checkpoint (a shard's failure costs its pushes since the last checkpoint)",
        ),
        ("log", "durability: log (no failure costs an acknowledged push)"),
        (
            Log(sync="process"),
            "durability: log without syncs (no death of a process costs an acknowledged push",
        ),
    ],
    ids=str,
)
def test_a_run_says_what_a_failure_costs_and_a_complete_one_leaves_no_log(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    durability: object,
    says: str,
) -> None:
    run_on_threads(monkeypatch)
    plan = partition(toy.network(), Cluster.local(machines=1), batch=32)
    driver = Downpour(durability=durability)  # type: ignore[arg-type]
    names = synced_files(monkeypatch)
    run = train(plan, toy.data(64), driver=driver, epochs=2, checkpoints=tmp_path / "runs", show="auto")
    assert says in capsys.readouterr().err
    assert any(".log" in name for name in names) == (durability != "checkpoint")
    assert run.lost_pushes == 0 and not list((tmp_path / "runs").glob("log-*"))


@pytest.mark.parametrize("durability", ["checkpoint", "log"])
def test_each_answer_of_a_batch_method_is_on_the_disk_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    run_on_threads(monkeypatch)
    plan = partition(toy.network(), Cluster.local(machines=1), batch=32)
    driver = Sandblaster(LBFGS(max_iterations=3), inline="all", durability=durability)  # type: ignore[arg-type]
    names = synced_files(monkeypatch)
    train(plan, toy.data(64), driver=driver, checkpoints=tmp_path, show="nothing")
    answers = names.count("journal")
    assert answers > 3 if durability == "log" else answers <= 2


def test_the_option_is_the_setting_and_a_wrong_one_is_refused() -> None:
    assert make_driver({"durability": "log"})[0] == Downpour(
        durability="log", optimizer=make_driver({})[0].optimizer
    )
    with pytest.raises(
        ValueError, match=r"durability is 'disk'; write one of 'checkpoint', 'replicated', 'log'"
    ):
        Downpour(durability="disk")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Log's sync is 'kernel'; write 'disk' or 'process'"):
        Log(sync="kernel")  # type: ignore[arg-type]
