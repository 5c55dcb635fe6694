"""A log beside real processes that are killed: what was acknowledged is there, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from partita.engine import SGD, Downpour, Log, train
from partita.engine.parameters import Checkpoints
from partita.partitioner import Cluster, partition
from tests.faults import toy
from tests.faults.helpers import DEADLINE_S, Witness, hosts_of
from tests.faults.oracle import Oracle, Push

pytestmark = pytest.mark.slow


def kill(*names: str) -> None:
    hosts = hosts_of(os.getpid())
    for name in names:
        hosts[name].kill()


@pytest.mark.parametrize("sync", ["disk", "process"])
def test_shards_that_are_killed_lose_nothing_that_they_acknowledged(
    witness: Witness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    """Alone, together, and with the part that has just pushed."""
    folder = tmp_path / "oracle"
    folder.mkdir()
    oracle = Oracle.watching(folder, monkeypatch.setattr)
    rounds = ("shard 0",), ("shard 1",), ("shard 0", "shard 1"), ("shard 0", "part 0.0")
    for n, victims in enumerate(rounds):
        witness.when(
            lambda seen, n=n: seen.source == "part 1.0" and seen.step > 400 * (n + 1),  # type: ignore[misc]
            partial(kill, *victims),
        )
    run = train(
        partition(toy.network(), Cluster.local(machines=1), batch=8),
        toy.data(),
        driver=Downpour(replicas=2, shards=2, optimizer=SGD(0.05), durability=Log(sync=sync)),  # type: ignore[arg-type]
        epochs=300,
        checkpoints=tmp_path / "runs",
        checkpoint_every_s=3.0,
    )
    assert oracle.acknowledged and not oracle.acknowledged - oracle.held(tmp_path / "runs")
    assert run.lost_pushes == 0
    assert any("of its log carried out again" in text for text in witness.texts)
    assert not [text for text in witness.texts if "came back without" in text], "no shard lacks a push"
    assert not list((tmp_path / "runs").glob("log-*")), "a run that is complete leaves none"


@pytest.mark.parametrize("checkpoint_every_s", [0.7, 60.0])
def test_a_run_that_is_killed_goes_on_from_its_logs_and_each_step_counts_once(
    tmp_path: Path, checkpoint_every_s: float
) -> None:
    """All processes at once, with a checkpoint before or without any."""

    def life(number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.faults.logged", str(tmp_path), str(number)]
        return subprocess.Popen([*command, str(checkpoint_every_s)], process_group=0)

    for number in range(2):
        process, oracle = life(number), Oracle(tmp_path / f"life {number}")
        until = time.monotonic() + DEADLINE_S
        while len(oracle.acknowledged) < 600 and time.monotonic() < until:
            assert process.poll() is None, "the run was over before it came so far"
            time.sleep(0.05)
        hosts = hosts_of(process.pid)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for host in hosts.values():
            host.wait(DEADLINE_S)
    assert life(2).wait(DEADLINE_S) == 0
    steps, lost = map(int, (tmp_path / "steps").read_text().split())
    assert (steps, lost) == (300 * 32, 0)
    lives = [Oracle(tmp_path / f"life {number}", life=number) for number in range(3)]
    (newest, *_) = Checkpoints(tmp_path / "runs").complete()
    acknowledged = {push for one in lives for push in one.acknowledged}
    pushed = {push: units for one in lives for push, units in one.units.items()}
    for shard in lives[0].shards:
        files: dict[int, set[Push]] = {}
        for one in lives:
            files = one.files(shard, files)
        lost = {push for push in acknowledged if push[0] == shard} - files[newest]
        assert not lost, f"{shard} lost {sorted(lost)}"
        units = [unit for push in files[newest] for unit in pushed[push]]
        assert sorted(units) == list(range(300 * 32)), "each step counts once"
