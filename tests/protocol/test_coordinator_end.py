"""The coordinator alone: the end of a run, Ctrl-C, and a resumed run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.engine.protocol import Topology
from partita.engine.protocol.checkpoint_messages import LostPushes, Save, SaveFailed, SaveProgress
from partita.engine.protocol.coordinator_effects import (
    AbortRun,
    Commit,
    Committed,
    EndRun,
    NotCommitted,
    Opened,
    Restart,
    StopRequested,
    Timeouts,
    Warn,
)
from partita.engine.protocol.events import Died, Tick
from partita.engine.protocol.host_lifecycle import Phase
from partita.engine.protocol.messages import Begin, Failed, Lease, Stop
from tests.protocol.coordinating import HOSTS, PARTS, SHARDS, STEPS, Run, begins, messages, of


@pytest.fixture
def run() -> Run:
    return Run().start()


# The end.


def test_when_all_have_finished_a_last_checkpoint_is_taken_and_all_are_stopped(run: Run) -> None:
    run.wait(30.0)  # a round is under way
    run.saved("shard 0", 1)
    assert run.finish(*PARTS[:3]) == []
    assert messages(Save, run.finish(PARTS[3])) == dict.fromkeys(SHARDS, Save(2)), "newer than the last push"
    assert run.saved("shard 1", 1) == []
    assert run.finish(PARTS[3]) == []
    run.saved("shard 0", 2)
    effects = run.saved("shard 1", 2)
    assert of(Commit, effects)[0].steps == (STEPS, STEPS)
    assert set(messages(Stop, effects)) == set(HOSTS)
    assert effects[-1] == EndRun((STEPS, STEPS), 2, 0, complete=True)
    assert run.feed(Tick()) == run.feed(Died("shard 0", 0)) == run.feed(StopRequested()) == []


def test_a_part_that_dies_after_its_work_is_not_needed(run: Run) -> None:
    run.finish(*PARTS[:2])
    [warning] = run.feed(Died("part 0.0", 0))
    assert warning == Warn("part 0.0: its process ended; its work was done")
    assert messages(Save, run.finish(*PARTS[2:])) == dict.fromkeys(SHARDS, Save(1))


def test_a_part_that_dies_before_its_mate_has_finished_is_needed(run: Run) -> None:
    run.finish("part 0.0")
    assert of(Restart, run.feed(Died("part 0.0", 0)))


def test_a_shard_that_dies_at_the_end_is_asked_again_when_all_parts_have_met_the_new_one(run: Run) -> None:
    run.finish(*PARTS, directory=1)
    run.saved("shard 0", 1)
    assert run.machine.phase is Phase.FINISHING
    run.feed(Died("shard 1", 0))
    assert messages(Save, run.restarted("shard 1")) == {}
    assert messages(Save, run.finish(*PARTS, directory=1)) == {}, "that was said of the old shard"
    assert messages(Save, run.finish(*PARTS, directory=2)) == dict.fromkeys(SHARDS, Save(2))


def test_the_last_round_must_end() -> None:
    run = Run(timeouts=Timeouts(save_s=5.0)).start()
    run.finish(*PARTS)
    run.saved("shard 0", 1)
    [failure] = of(AbortRun, run.wait(5.0))
    assert "checkpoint 1 waits for shard 1 since 5 s, and it is the last one" in failure.reason


def test_what_is_lost_is_counted_from_the_checkpoint(run: Run) -> None:
    run.feed(Died("shard 0", 0))
    run.restarted("shard 0")
    [warning] = run.receive("shard 0", LostPushes("part 0.0", 2))
    assert "shard 0 came back without 2 acknowledged pushes of part 0.0" in of(Warn, [warning])[0].text
    assert run.receive("shard 0", LostPushes("part 0.0", 2)) == []
    assert run.machine.lost == 2
    run.feed(Died("shard 0", 1))  # back to the same checkpoint: the same pushes are missing again
    assert run.machine.lost == 0
    run.restarted("shard 0")
    run.receive("shard 0", LostPushes("part 0.0", 3))
    run.wait(30.0)
    run.saved("shard 1", 1)
    [commit] = of(Commit, run.saved("shard 0", 1, lost=4))
    assert commit.lost == run.machine.lost == 4, "one report was itself lost"
    run.feed(Died("shard 0", 2))
    run.restarted("shard 0")
    run.receive("shard 0", LostPushes("part 1.0", 1))
    assert run.machine.lost == 5


def test_what_is_found_lost_after_a_commit_is_counted_in_its_manifest(run: Run) -> None:
    """While it is written, and when it is on disk; what a successor lacks belongs to the next one."""
    run.feed(Died("shard 0", 0))
    run.restarted("shard 0")
    run.wait(30.0)
    run.saved("shard 1", 1)
    [commit] = of(Commit, run.saved("shard 0", 1))
    [again] = of(Commit, run.receive("shard 0", LostPushes("part 0.0", 2)))
    assert (commit.lost, again) == (0, replace(commit, lost=2))
    run.feed(Committed(1))
    [later] = of(Commit, run.receive("shard 0", LostPushes("part 0.0", 3)))
    assert later == replace(commit, lost=3)
    assert of(Commit, run.receive("shard 0", LostPushes("part 0.0", 3))) == []
    assert run.feed(Committed(1)) == []
    run.feed(Died("shard 0", 1))
    run.restarted("shard 0")
    assert of(Commit, run.receive("shard 0", LostPushes("part 0.0", 3))) == [], "missing in the same file"
    assert run.machine.lost == 3


# Ctrl-C.


def test_ctrl_c_takes_a_last_checkpoint(run: Run) -> None:
    run.report("part 0.0", 2)
    run.report("part 0.1", 2)
    assert messages(Save, run.feed(StopRequested())) == dict.fromkeys(SHARDS, Save(1))
    assert run.feed(StopRequested()) == []
    run.saved("shard 0", 1)
    effects = run.saved("shard 1", 1)
    assert of(Commit, effects)[0].steps == (2, 0)
    assert effects[-1] == EndRun((2, 0), 1, 0, complete=False)
    assert set(messages(Stop, effects)) == set(HOSTS)


def test_ctrl_c_after_which_a_part_fails_before_its_last_step_is_not_a_complete_run(run: Run) -> None:
    run.wait(30.0)  # a round is under way
    run.feed(StopRequested())
    run.receive("part 0.0", Failed("it raised", ""))
    for part in PARTS[1:]:
        run.finish(part)
    run.receive("shard 0", SaveFailed(1, 0, "no space"))
    run.wait(2.0, hearing=HOSTS)
    run.saved("shard 0", 2)
    (end,) = of(EndRun, run.saved("shard 1", 2))
    assert end == EndRun((0, STEPS), 2, 0, complete=False)


def test_ctrl_c_waits_as_long_as_the_last_checkpoint_comes_further(run: Run) -> None:
    run.feed(StopRequested())
    for n_bytes in (1, 2, 3, 4):
        assert not of(EndRun, run.wait(2.5))
        run.receive("shard 1", SaveProgress(1, 0, n_bytes))
    run.saved("shard 0", 1)
    assert not of(EndRun, run.wait(2.75))
    run.receive("shard 1", SaveProgress(7, 0, 1))  # of another checkpoint
    effects = run.wait(0.25)
    assert "has come no further for 3 s; there is none before it" in of(Warn, effects)[0].text
    assert effects[-1] == EndRun((0, 0), None, 0, complete=False)


def test_a_checkpoint_that_cannot_be_written_is_lost_and_tried_again() -> None:
    run = Run(timeouts=Timeouts(checkpoint_every_s=30.0)).start()
    run.commits = False
    run.wait(30.0)
    [warning] = run.receive("shard 1", SaveFailed(1, 0, "No space left on device"))
    assert warning == Warn(
        "checkpoint 1 was not written: shard 1: No space left on device; it is tried again in 1 s"
    )
    assert run.saved("shard 0", 1) == [] and run.receive("shard 1", SaveFailed(1, 0, "again")) == []
    assert messages(Save, run.wait(0.75)) == {}
    assert messages(Save, run.wait(0.25)) == dict.fromkeys(SHARDS, Save(2))
    run.saved("shard 0", 2)
    [commit] = of(Commit, run.saved("shard 1", 2))
    [warning] = run.feed(NotCommitted(commit.checkpoint, "Too many open files"))
    assert "checkpoint 2 was not written: Too many open files; it is tried again in 2 s" in str(warning)
    assert messages(Save, run.wait(1.75)) == {}
    assert messages(Save, run.wait(0.25)) == dict.fromkeys(SHARDS, Save(3))
    run.saved("shard 0", 3)
    run.saved("shard 1", 3)
    assert run.feed(Committed(3)) == [] and run.machine.checkpoints.committed == 3
    assert messages(Save, run.wait(30.0)) == dict.fromkeys(SHARDS, Save(4)), "after its usual interval"


def test_the_last_checkpoint_is_tried_again_until_its_time_is_over() -> None:
    run = Run(timeouts=Timeouts(save_s=20.0)).start()
    assert messages(Save, run.finish(*PARTS)) == dict.fromkeys(SHARDS, Save(1))
    effects = run.receive("shard 0", SaveFailed(1, 0, "No space left on device"))
    tried, failed = [], of(AbortRun, effects)
    while not failed and run.now < 1000:
        effects = run.wait(1.0)
        for save in messages(Save, effects).values():
            tried.append(save.checkpoint)
            failed = of(
                AbortRun, run.receive("shard 0", SaveFailed(save.checkpoint, 0, "No space left on device"))
            )
            break
    assert sorted(set(tried)) == [2, 3, 4, 5, 6], "after 1, 2, 4, 8 and 16 s"
    assert "the last one was tried for 31 s, so make room for it" in failed[0].reason


def test_a_last_checkpoint_that_fails_once_ends_the_run_as_usual() -> None:
    run = Run().start()
    run.finish(*PARTS)
    run.receive("shard 0", SaveFailed(1, 0, "No space left on device"))
    assert messages(Save, run.wait(1.0)) == dict.fromkeys(SHARDS, Save(2))
    run.saved("shard 0", 2)
    effects = run.saved("shard 1", 2)
    assert effects[-1] == EndRun((STEPS, STEPS), 2, 0, complete=True)


def test_a_shard_that_dies_while_the_manifest_is_written_goes_back_to_the_one_before(run: Run) -> None:
    run.commits = False
    run.wait(30.0)
    run.saved("shard 0", 1)
    assert of(Commit, run.saved("shard 1", 1))
    [restart] = of(Restart, run.feed(Died("shard 1", 0)))
    assert restart.checkpoint is None
    assert run.feed(Committed(1)) == [] and run.machine.checkpoints.committed is None
    run.restarted("shard 1")
    assert messages(Save, run.wait(2.0)) == dict.fromkeys(SHARDS, Save(2)), "soon, or it is lost again"


def test_a_shard_may_die_often_if_a_checkpoint_is_made_each_time() -> None:
    run = Run(timeouts=Timeouts(checkpoint_every_s=3600.0)).start()
    for n in range(10):
        assert not of(AbortRun, run.feed(Died("shard 0", n)))
        run.restarted("shard 0")
        assert messages(Save, run.wait(2.0)) == dict.fromkeys(SHARDS, Save(n + 1))
        run.saved("shard 0", n + 1)
        run.saved("shard 1", n + 1)


def test_ctrl_c_ends_a_run_that_has_not_begun_at_once() -> None:
    run = Run()
    run.feed(Opened())
    run.hello("shard 0")
    effects = run.feed(StopRequested())
    assert messages(Stop, effects) == {"shard 0": Stop()}
    assert effects[-1] == EndRun((0, 0), None, 0, complete=False)


def test_ctrl_c_uses_the_round_under_way_and_replaces_nobody(run: Run) -> None:
    run.wait(30.0)
    run.saved("shard 0", 1)
    assert run.feed(StopRequested()) == []
    assert not of(Restart, run.feed(Died("part 0.0", 0)))
    assert not of(Restart, run.receive("part 1.0", Failed("interrupted", "")))
    effects = run.saved("shard 1", 1)
    assert effects[-1] == EndRun((0, 0), 1, 0, complete=False)


def test_ctrl_c_and_a_dead_shard_end_at_once(run: Run) -> None:
    run.feed(StopRequested())
    effects = run.feed(Died("shard 1", 0, "killed"))
    assert effects[-1] == EndRun((0, 0), None, 0, complete=False)


# Resuming.


def test_a_resumed_run_does_just_the_ranges_that_are_left() -> None:
    done = ((0, 6), (8, 10), (15, 17))
    run = Run(done=done, next_checkpoint=8, incarnations={"shard 0": 3}, least_ahead=4)
    [restart] = of(Restart, run.feed(Opened()))
    assert restart.hosts == (("shard 0", 3), *((name, 0) for name in HOSTS[1:]))
    assert restart.checkpoint is None, "the resumed parameters are the start of this run"
    for name in HOSTS:
        run.hello(name)
    begun = messages(Begin, [effect for name in HOSTS for effect in run.ready(name)])
    assert begun["part 0.0"].leases == (Lease(0, 6, 8), Lease(2, 10, 12)), "its own steps count from 0"
    assert begun["part 1.1"].leases == (Lease(0, 12, 15), Lease(3, 17, 18))
    assert run.machine.mode.steps_done == (5, 5), "10 steps of earlier runs, by anybody"
    for part in PARTS[:2]:
        last = run.report(part, 3)
    assert begins(last) == dict.fromkeys(PARTS[:2], (0, 6)), "the rest, and no more"
    assert messages(Begin, last)["part 0.0"].is_last
    run.finish(*PARTS[:2], step=6)
    assert messages(Save, run.finish(*PARTS[2:], step=4)) == dict.fromkeys(SHARDS, Save(8))
    run.saved("shard 0", 8)
    assert of(Commit, run.saved("shard 1", 8))[0].done == ((0, 20),)


def test_a_run_without_work_is_done() -> None:
    run = Run(done=[(0, 2 * STEPS)])
    assert run.feed(Opened()) == [EndRun((STEPS, STEPS), None, 0, complete=True)]


@pytest.mark.parametrize("wrong", [{"stop_s": 0.0}, {"checkpoint_every_s": -1.0}, {"failures": 0}])
def test_timeouts_are_positive(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="change what is not"):
        Timeouts(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [(1, 0, 1), (0, 1, 1), (1, 1, -1)])
def test_a_topology_needs_a_replica_of_a_machine(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="at least one replica of one machine"):
        Topology(*wrong)
    assert Topology(1, 1, 0).n_hosts == 1, "some drivers have no shards"
