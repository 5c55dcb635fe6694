"""Packing tasks and waiting for the disk: the coordinator answers meanwhile, and all is done in order."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from partita.engine import LBFGS, Downpour, Run, Sandblaster, train
from partita.engine.parameters import Checkpoints, Journal
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.events import Tick
from partita.engine.run import supervisor
from partita.partitioner import Cluster, partition
from tests.drivers.conftest import WatchedThreads
from tests.faults import toy
from tests.faults.helpers import DEADLINE_S

BATCH = Sandblaster(LBFGS(max_iterations=4))


def train_toy(driver: Downpour | Sandblaster, folder: Path, **more: Any) -> Run:
    plan = partition(toy.network(), Cluster.local(machines=1), batch=64, strategy="balanced")
    arguments = {"show": "nothing", "epochs": 3 if isinstance(driver, Downpour) else None} | more
    return train(plan, toy.data(), driver=driver, checkpoints=folder, **arguments)


class Traffic:
    """Observes whether the coordinator still answers while slow work is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._waits, self._ticked = threading.Event(), threading.Event()
        receive = Coordinator.receive

        def watched(machine: Coordinator, event: Any, now: float) -> Any:
            if isinstance(event, Tick) and self._waits.is_set():
                self._ticked.set()
            return receive(machine, event, now)

        monkeypatch.setattr(Coordinator, "receive", watched)

    def continues(self) -> bool:
        """Waits for the next time that the coordinator looks at the clock."""
        self._ticked.clear()
        self._waits.set()
        return self._ticked.wait(DEADLINE_S)


def test_tasks_are_packed_while_the_coordinator_answers(
    on_threads: list[WatchedThreads], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic, pack, found = Traffic(monkeypatch), supervisor.pack_task, []

    def slow(task: Any) -> bytes:
        found.append(traffic.continues())
        return pack(task)

    monkeypatch.setattr(supervisor, "pack_task", slow)
    train_toy(Downpour(shards=2), tmp_path)
    assert found == [True] * 3


@pytest.mark.parametrize("driver", [Downpour(), BATCH], ids=["downpour", "sandblaster"])
def test_manifests_and_a_new_journal_are_written_while_the_coordinator_answers(
    on_threads: list[WatchedThreads],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    driver: Downpour | Sandblaster,
) -> None:
    traffic, commit, create, found = Traffic(monkeypatch), Checkpoints.commit, Journal.create, []

    def slow(*call: Any) -> Any:
        found.append(traffic.continues())
        return commit(*call)

    def slowly_created(*call: Any, **how: Any) -> Any:
        found.append(traffic.continues())
        return create(*call, **how)

    monkeypatch.setattr(Checkpoints, "commit", slow)
    monkeypatch.setattr(Journal, "create", slowly_created)
    run = train_toy(driver, tmp_path, checkpoint_every_s=0.01)
    assert found and all(found)
    journal = Journal.read(tmp_path / "journal")
    assert (journal is not None) == isinstance(driver, Sandblaster)
    assert journal is None or [entry.index for entry in journal.entries] == list(range(len(journal)))
    newest = Checkpoints(tmp_path).latest({name: values.shape for name, values in run.parameters.items()})
    assert newest is not None and newest.manifest.position == (None if journal is None else len(journal))


@pytest.mark.parametrize("driver", [Downpour(), BATCH], ids=["downpour", "sandblaster"])
def test_a_manifest_that_cannot_be_written_is_tried_again(
    on_threads: list[WatchedThreads],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    driver: Downpour | Sandblaster,
) -> None:
    commit, tried = Checkpoints.commit, []

    def fails_once(self: Checkpoints, manifest: Any) -> None:
        tried.append(manifest.checkpoint)
        if len(tried) == 1:
            raise OSError(24, os.strerror(24))
        commit(self, manifest)

    monkeypatch.setattr(Checkpoints, "commit", fails_once)
    train_toy(driver, tmp_path, show="lines")
    said = capsys.readouterr().err
    assert (
        f"checkpoint {tried[0]} was not written: [Errno 24] Too many open files; it is tried again in" in said
    )
    assert len(tried) == 2 and Checkpoints(tmp_path).complete() == tried[1:]


def test_an_older_checkpoint_that_cannot_be_removed_is_reported_and_the_run_goes_on(
    on_threads: list[WatchedThreads],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(self: Checkpoints, **_: object) -> None:
        raise OSError(13, os.strerror(13), "runs/00000001")

    monkeypatch.setattr(Checkpoints, "prune", fails)
    run = train_toy(Downpour(), tmp_path, show="lines")
    said = capsys.readouterr().err
    assert (
        run.steps == (12,) and "and an older one could not be removed ([Errno 13] Permission denied" in said
    )
