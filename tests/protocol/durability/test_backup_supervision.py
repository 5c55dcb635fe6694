"""The coordinator of shards with backups: who starts from where, and who learns of whom."""

from __future__ import annotations

from typing import Any

import pytest

from partita.engine.protocol import Topology
from partita.engine.protocol.checkpoint_messages import LostPushes
from partita.engine.protocol.coordinator_effects import Restart, Warn
from partita.engine.protocol.copy_messages import CopyComplete
from partita.engine.protocol.events import Died
from partita.engine.protocol.messages import Directory, WaitReport
from tests.protocol import coordinating
from tests.protocol.coordinating import PARTS, SHARDS, Run, messages, of

BACKUPS = ("backup 0", "backup 1")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(coordinating, "HOSTS", (*SHARDS, *BACKUPS, *PARTS))
    return Run(topology=Topology(2, 2, 2, replicated=True)).start()


@pytest.fixture
def whole(run: Run) -> Run:
    complete(run)
    return run


def complete(run: Run) -> list[Any]:
    return [
        effect
        for shard, backup in zip(SHARDS, BACKUPS, strict=True)
        for effect in run.receive(backup, CopyComplete(run.incarnations[shard]))
    ]


def die(run: Run, name: str) -> list[Any]:
    return run.feed(Died(name, run.incarnations[name], "killed"))


def test_a_shard_and_its_backup_know_each_other_and_parts_know_no_backup(run: Run) -> None:
    effects = die(run, "backup 1")
    assert of(Restart, effects) == [Restart((("backup 1", 1),), None, "killed")]
    gone = messages(Directory, effects)
    assert {name: one.removed for name, one in gone.items()} == {"shard 1": ("backup 1",)}
    back = messages(Directory, run.hello("backup 1"))
    assert [peer.name for peer in back["backup 1"].peers] == ["shard 1"]
    assert [peer.name for peer in back["shard 1"].peers] == ["backup 1"] and len(back) == 2


def test_a_shard_goes_on_from_a_backup_that_has_the_same(whole: Run) -> None:
    effects = die(whole, "shard 0")
    assert of(Restart, effects) == [Restart((("shard 0", 1),), None, "killed", from_backup=True)]
    sent = messages(Directory, whole.hello("shard 0"))
    assert set(sent) == {*PARTS, "shard 0", "backup 0"}
    assert not complete(whole)[1:] and whole.machine.lost == 0
    again = die(whole, "shard 0")
    assert of(Restart, again) == [Restart((("shard 0", 2),), None, "killed", from_backup=True)]


def test_a_backup_that_is_not_whole_is_no_source(run: Run) -> None:
    effects = die(run, "shard 0")
    assert of(Restart, effects) == [Restart((("shard 0", 1), ("backup 0", 1)), None, "killed")]


def test_a_late_report_of_a_backup_about_an_earlier_process_counts_for_nothing(whole: Run) -> None:
    die(whole, "shard 0")
    assert not whole.receive("backup 0", CopyComplete(0))
    effects = die(whole, "backup 0")  # while the shard is filled from it
    [restart] = of(Restart, effects)
    assert restart.hosts == (("shard 0", 2), ("backup 0", 1)) and not restart.from_backup


def test_both_copies_dead_go_back_to_the_committed_checkpoint(whole: Run) -> None:
    whole.wait(30.0, hearing=coordinating.HOSTS)
    for shard in SHARDS:
        whole.saved(shard, 1)
    die(whole, "backup 0")
    [restart] = of(Restart, die(whole, "shard 0"))
    assert (restart.hosts, restart.checkpoint) == ((("shard 0", 1), ("backup 0", 2)), 1)


def test_losses_before_a_takeover_stay_counted(whole: Run) -> None:
    whole.receive("shard 0", LostPushes("part 0.0", 3))
    die(whole, "shard 0")
    whole.restarted("shard 0")
    assert whole.machine.lost == 3
    complete(whole)
    whole.receive("shard 0", LostPushes("part 1.0", 2))
    assert whole.machine.lost == 5


def test_a_backup_that_confirms_nothing_is_replaced_and_its_shard_is_not(whole: Run) -> None:
    assert not of(Restart, whole.receive("shard 0", WaitReport("backup 0", "confirmations", 30.0)))
    effects = whole.receive("shard 0", WaitReport("backup 0", "confirmations", 61.0))
    assert of(Restart, effects)[0].hosts == (("backup 0", 1),)
    assert "no confirmation to shard 0 for 61 s" in of(Warn, effects)[0].text


def test_the_run_begins_when_the_backups_are_ready_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinating, "HOSTS", (*SHARDS, *BACKUPS, *PARTS))
    run = Run(topology=Topology(2, 2, 2, replicated=True))
    run.feed(coordinating.Opened())
    for name in coordinating.HOSTS:
        run.hello(name)
    begun = [coordinating.begins(run.ready(name)) for name in (*SHARDS, *PARTS, *BACKUPS)]
    assert not any(begun[:-1]) and set(begun[-1]) == set(PARTS)
