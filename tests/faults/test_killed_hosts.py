"""SIGKILL and SIGSTOP in the middle of training: the run goes on, and says what it cost."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from partita.engine import SGD, Callback, Control, Downpour, Record, Run, evaluate, train
from partita.engine.parameters import Checkpoints
from partita.engine.protocol.coordinator_effects import Progress
from partita.partitioner import Cluster, partition
from tests.faults import toy
from tests.faults.helpers import Witness, hosts_of

DRIVER = Downpour(replicas=2, shards=2, optimizer=SGD(0.05))


def train_toy(
    folder: Path | None = None, *, machines: int = 2, epochs: int = 200, callbacks: Sequence[Callback] = ()
) -> Run:
    plan = partition(toy.network(), Cluster.local(machines=machines), batch=8, strategy="balanced")
    given: Any = {"checkpoints": folder, "checkpoint_every_s": 0.3, "callbacks": callbacks}
    return train(plan, toy.data(), driver=DRIVER, epochs=epochs, **given)


class Enough(Callback):
    """Ends the run when it has been asked to."""

    asked = False

    def on_record(self, record: Record, control: Control) -> None:
        if self.asked:
            control.stop("enough was seen")


def assert_complete(run: Run, *, epochs: int = 200) -> None:
    assert sum(run.steps) == 32 * epochs
    assert all(np.isfinite(values).all() for values in run.parameters.values())
    assert evaluate(run, toy.data()).accuracy > 0.9


def lost_by(witness: Witness) -> int:
    """Last reported number of lost pushes for each shard and part."""
    said = (re.fullmatch(r"(shard \d) came back without (\d+) .* of (part .*)", t) for t in witness.texts)
    return sum({(m[1], m[3]): int(m[2]) for m in said if m}.values())


def test_a_killed_part_is_started_again_and_the_other_replica_goes_on(witness: Witness) -> None:
    before: dict[str, int] = {}
    after: dict[str, int] = {}

    def kill() -> None:
        hosts = hosts_of(os.getpid())
        before.update({name: process.pid for name, process in hosts.items()})
        hosts["part 0.1"].kill()

    enough = Enough()

    def look() -> None:
        after.update({name: process.pid for name, process in hosts_of(os.getpid()).items()})
        enough.asked = True

    def is_back(progress: Progress) -> bool:
        return progress.source == "part 0.1" and any(
            "replica 0 begins again" in text for text in witness.texts
        )

    witness.when(lambda progress: progress.source == "part 0.1" and progress.step > 20, kill)
    witness.when(is_back, look)
    run = train_toy(epochs=100_000, callbacks=[enough])
    assert run.stopped == "enough was seen"
    assert evaluate(run, toy.data()).accuracy > 0.9
    assert run.lost_pushes == 0

    assert witness.index("part 0.1: its process was ended by SIGKILL; replica 0 is started again")
    steps = witness.reports("part 1.0")
    assert steps == sorted(set(steps)) and not any("replica 1" in text for text in witness.texts)
    replaced = {name for name in before if before[name] != after[name]}
    assert replaced == {"part 0.0", "part 0.1"}


@pytest.mark.slow
def test_a_killed_shard_goes_on_from_its_checkpoint(witness: Witness, tmp_path: Path) -> None:
    def kill() -> None:
        hosts_of(os.getpid())["shard 1"].kill()

    witness.when(lambda progress: any(tmp_path.rglob("manifest.json")) and progress.step > 100, kill)
    run = train_toy(tmp_path, machines=1)
    assert_complete(run)
    said = witness.texts[witness.texts.index(str(witness.seen[witness.index("shard 1: its process")]))]
    assert re.fullmatch(r"shard 1: its process was ended by SIGKILL; restarted from checkpoint \d+", said)
    assert run.lost_pushes == lost_by(witness)
    newest = Checkpoints(tmp_path).latest({name: values.shape for name, values in run.parameters.items()})
    assert newest is not None
    assert (newest.manifest.steps, newest.manifest.lost) == (run.steps, run.lost_pushes)


@pytest.mark.slow
def test_all_hosts_killed_at_once_come_back(witness: Witness, tmp_path: Path) -> None:
    def kill() -> None:
        for process in hosts_of(os.getpid()).values():
            process.kill()

    witness.when(lambda progress: progress.step > 100, kill)
    assert_complete(train_toy(tmp_path))
    for name in ("shard 0", "shard 1", "replica 0", "replica 1"):
        assert any(name in text and ("restarted" in text or "begins again" in text) for text in witness.texts)


@pytest.mark.slow
def test_hosts_come_back_after_the_process_that_forks_them_was_killed(
    witness: Witness, tmp_path: Path
) -> None:
    def kill() -> None:
        [template] = {process.ppid() for process in hosts_of(os.getpid()).values()}
        psutil.Process(template).kill()

    witness.when(lambda progress: progress.step > 100, kill)
    assert_complete(train_toy(tmp_path))
    assert witness.index("shard 0: its process was ended by SIGKILL; restarted from")


@pytest.mark.slow
def test_a_stopped_shard_is_taken_for_dead_and_replaced(witness: Witness, tmp_path: Path) -> None:
    stopped: list[psutil.Process] = []

    def stop() -> None:
        stopped.append(hosts_of(os.getpid())["shard 0"])
        stopped[0].suspend()

    witness.when(lambda progress: progress.step > 100, stop)
    assert_complete(train_toy(tmp_path))
    said = witness.index("shard 0: silent for")
    assert "restarted from" in str(witness.seen[said])
    assert not stopped[0].is_running()


@pytest.mark.slow
def test_a_stopped_part_that_wakes_in_time_continues(witness: Witness) -> None:
    """A part is suspected after two seconds of silence, and restarted after four."""
    stopped: list[psutil.Process] = []

    def stop() -> None:
        stopped.append(hosts_of(os.getpid())["part 0.0"])
        stopped[0].suspend()

    witness.when(lambda progress: progress.step > 100, stop)
    witness.when_said("part 0.0 has been silent", lambda: stopped[0].resume())
    assert_complete(train_toy())
    assert witness.index("part 0.0 sends again") > witness.index("part 0.0 has been silent")
    assert not any("begins again" in text for text in witness.texts)
