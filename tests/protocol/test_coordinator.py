"""The coordinator alone: bringing hosts to work, checkpoints and deaths, one event at a time."""

from __future__ import annotations

import pytest

from partita.engine.protocol.checkpoint_messages import Save, Saved
from partita.engine.protocol.coordinator_effects import (
    AbortRun,
    Commit,
    Launched,
    Opened,
    ProcessStarted,
    Progress,
    Restart,
    ShardFile,
    Starting,
    Timeouts,
    Warn,
)
from partita.engine.protocol.events import Died, Received, Send, Span, Tick
from partita.engine.protocol.host_lifecycle import Phase
from partita.engine.protocol.messages import (
    Directory,
    DirectoryAck,
    Failed,
    Finished,
    Heartbeat,
    Hello,
    Ready,
    Report,
    ResumeStep,
    SetUp,
    SetUpProgress,
    Stop,
    Tensor,
)
from tests.protocol.coordinating import HOSTS, PARTS, SHARDS, STEPS, Run, begins, messages, of


@pytest.fixture
def run() -> Run:
    return Run().start()


# Bringing hosts to work.


def test_a_run_is_launched_assigned_introduced_and_begun() -> None:
    run = Run()
    assert run.feed(Opened()) == [Restart(tuple((name, 0) for name in HOSTS), None, "the run starts")]
    for name in HOSTS[:-1]:
        task = Send(name, SetUp("r"), Span(f"task of {name}", 0, 0))
        assert run.hello(name) == [task], "a directory is sent only when all hosts have arrived"
    last = run.hello(HOSTS[-1])
    directories = messages(Directory, last)
    assert set(directories) == set(HOSTS)
    to_part = directories["part 0.1"]
    assert [peer.name for peer in to_part.peers] == [*SHARDS, "part 0.0"], "its replica and the shards"
    assert [peer.name for peer in directories["shard 1"].peers] == list(PARTS)
    assert (to_part.peers[0].endpoint, to_part.peers[0].public_key) == ("tcp://shard 0", "key shard 0")
    for name in HOSTS[:-1]:
        assert run.ready(name) == []
    assert run.machine.waits_for == (("part 1.1", "Ready, after its task", 100.0),)
    begun = run.ready(HOSTS[-1])
    assert begins(begun) == dict.fromkeys(PARTS, (0, STEPS))
    assert run.machine.phase is Phase.RUNNING


def test_what_was_lost_on_the_way_is_repeated() -> None:
    run = Run()
    run.feed(Opened())
    for name in HOSTS:
        run.hello(name)
    assert messages(SetUp, run.hello("part 0.0")) == {"part 0.0": SetUp("r")}
    for name in HOSTS:
        run.ready(name)
    assert run.receive("shard 0", Ready()) == []
    for name in HOSTS[:-1]:
        run.receive(name, DirectoryAck(1))
        if name in PARTS:
            run.report(name, 1)
    again = run.wait(1.0, hearing=())
    assert set(messages(Directory, again)) == {"part 1.1"}
    assert begins(again) == {"part 1.1": (0, STEPS)}


def test_other_versions_are_refused_with_both_named() -> None:
    run = Run()
    run.feed(Opened())
    effects = run.receive("part 0.0", Hello("tcp://x", {"python": "3.12"}))
    assert "part 0.0 runs python 3.12 and the coordinator python 3.11" in of(AbortRun, effects)[0].reason
    assert run.machine.phase is Phase.OVER
    assert run.hello("shard 0") == []


@pytest.mark.parametrize("limit_s", [30.0, 7.0])
@pytest.mark.parametrize(
    ("signs", "what"),
    [
        (0, "importing"),
        (1, "connecting to the coordinator"),
        (2, "setting up its task, with 0 functions compiled"),
        (3, "setting up its task, with 14 functions compiled"),
    ],
)
def test_a_host_that_does_not_get_ready_is_named_with_what_it_was_doing(
    signs: int, what: str, limit_s: float
) -> None:
    """Each sign of life gives it the whole time again."""
    run, late = Run(timeouts=Timeouts(start_s=limit_s)), "part 1.0"
    others = [name for name in HOSTS if name != late]
    run.feed(Opened())
    for name in others:
        run.hello(name)
        run.receive(name, Ready())
    for sign in (
        lambda: run.feed(ProcessStarted(late, 0)),
        lambda: run.hello(late),
        lambda: run.receive(late, SetUpProgress(14)),
    )[:signs]:
        assert not of(AbortRun, run.wait(limit_s - 0.5, hearing=others))
        sign()
    assert not of(AbortRun, run.wait(limit_s - 0.5, hearing=others))
    [failure] = of(AbortRun, run.wait(0.5, hearing=others))
    assert failure.reason == (
        f"{late} (incarnation 0) gave no sign of life for {limit_s:.0f} s while {what}; look at what it "
        f"printed, or allow more than {limit_s:g} s by start_timeout_s (--start-timeout)"
    )


def test_how_far_a_start_is_can_be_shown_until_the_run_begins() -> None:
    run = Run()
    run.feed(Opened())
    assert of(Starting, run.feed(Tick())) == [Starting(6, 0, 0, 0)]
    run.feed(ProcessStarted("shard 0", 0))
    for name in PARTS:
        run.hello(name)
    for name, compiled in (("part 0.0", 3), ("part 0.1", 4), ("part 0.0", 2)):
        run.receive(name, SetUpProgress(compiled))
    run.receive("part 1.0", Ready())
    assert of(Starting, run.feed(Tick())) == [Starting(6, 5, 1, 7)]
    for name in HOSTS:
        run.hello(name)
        run.receive(name, Ready())
    assert not of(Starting, run.feed(Tick()))


def test_a_host_that_dies_while_the_run_starts_is_launched_again() -> None:
    run = Run()
    run.feed(Opened())
    for name in HOSTS:
        run.hello(name)
    effects = run.feed(Died("shard 1", 0, "killed"))
    assert of(Restart, effects) == [Restart((("shard 1", 1),), None, "killed")]
    for name in HOSTS:
        if name != "shard 1":
            assert begins(run.ready(name)) == {}
    assert set(begins(run.restarted("shard 1"))) == set(PARTS)


def test_what_nobody_expects_changes_nothing(run: Run) -> None:
    assert run.feed(Received("part 9.9", 0, Ready())) == []
    assert run.feed(Died("part 9.9", 0)) == []
    assert run.feed(Died("part 0.0", 7)) == []
    assert run.receive("part 0.0", Tensor(0, "x", ())) == []
    assert run.receive("shard 0", Finished(STEPS)) == []
    assert run.report("shard 0", 3) == []
    assert run.receive("part 0.0", Hello("tcp://again", {"python": "3.11"})) == []
    assert messages(Restart, run.feed(Launched("part 0.0", 0, "another key"))) == {}


# Progress.


def test_a_report_is_progress_once(run: Run) -> None:
    assert run.report("part 0.0", 2) == [
        Progress("part 0.0", 2, 32, {"loss": 1.5, "correct": 20}, {"staleness": 3, "pushes": 2})
    ]
    assert run.report("part 0.0", 2) == []
    assert run.report("part 0.0", 1) == []
    assert run.report("part 0.0", STEPS + 1) == []
    assert run.machine.mode.steps_done == (0, 0)
    run.report("part 0.1", 1)
    assert run.machine.mode.steps_done == (1, 0), "what every part of the replica has done"


def test_a_replica_that_stands_still_is_restarted_and_given_more_time() -> None:
    run = Run(timeouts=Timeouts(stall_s=20.0, checkpoint_every_s=None)).start()
    for part in PARTS[:2]:
        run.report(part, 4)
    assert not of(Restart, run.wait(19.5))
    restarts = of(Restart, run.wait(0.5))
    reason = "no step reported for 20 s"
    assert restarts == [
        Restart((("part 0.0", 1), ("part 0.1", 1)), None, reason),
        Restart((("part 1.0", 1), ("part 1.1", 1)), None, reason),
    ]
    begun = run.restarted(*PARTS[:2], continues=4) + run.restarted(*PARTS[2:])
    assert begins(begun) == {part: (4 if part in PARTS[:2] else 0, STEPS) for part in PARTS}
    assert not of(Restart, run.wait(39.5))
    assert len(of(Restart, run.wait(0.5))) == 2


# Checkpoints.


def test_a_round_saves_all_shards_and_commits_once(run: Run) -> None:
    run.report("part 0.0", 3)
    run.report("part 0.1", 4)
    assert messages(Save, run.wait(29.5)) == {}
    assert messages(Save, run.wait(0.5)) == dict.fromkeys(SHARDS, Save(1))
    run.report("part 0.0", 5)
    run.report("part 0.1", 5)
    assert run.saved("shard 1", 1) == []
    assert messages(Save, run.wait(1.0)) == {"shard 0": Save(1)}, "only who has not answered is asked again"
    assert run.saved("shard 1", 1) == []
    entries = tuple(ShardFile(shard, 0, 7, f"{shard}.0", "00") for shard in SHARDS)
    assert run.saved("shard 0", 1) == [Commit(1, entries, (3, 0), 0, done=((0, 3),))], "of its beginning"
    assert run.saved("shard 0", 1) == []
    assert messages(Save, run.wait(29.0)) == dict.fromkeys(SHARDS, Save(2))


def test_a_round_in_which_a_shard_dies_is_dropped(run: Run) -> None:
    run.wait(30.0)
    run.saved("shard 1", 1)
    run.feed(Died("shard 0", 0))
    assert run.receive("shard 0", Saved(1, 0, 7, "late", "00"), incarnation=0) == []
    run.restarted("shard 0")
    assert run.saved("shard 0", 1) == [], "its number is not used again"
    assert messages(Save, run.wait(30.0)) == dict.fromkeys(SHARDS, Save(2))


def test_a_round_that_takes_too_long_is_given_up() -> None:
    run = Run(timeouts=Timeouts(save_s=5.0, checkpoint_every_s=10.0)).start()
    run.wait(10.0)
    run.saved("shard 0", 1)
    [warning] = of(Warn, run.wait(5.0))
    assert "checkpoint 1 waits for shard 1 since 5 s" in warning.text
    assert run.saved("shard 1", 1) == []
    assert set(messages(Save, run.wait(5.0)).values()) == {Save(2)}


def test_without_an_interval_there_is_only_the_last_round() -> None:
    run = Run(timeouts=Timeouts(checkpoint_every_s=None)).start()
    assert messages(Save, run.wait(100.0)) == {}
    assert messages(Save, run.finish(*PARTS)) == dict.fromkeys(SHARDS, Save(1))


# Death.


@pytest.mark.parametrize(
    ("says", "first"), [((None, None), 0), ((None, 3), 3), ((99, None), STEPS), ((-5, 2), 0)]
)
def test_a_part_without_parameters_goes_on_from_any_step(
    run: Run, says: tuple[int | None, int | None], first: int
) -> None:
    run.feed(Died("part 0.0", 0))
    run.restarted("part 0.0", continues=says[0])
    begun = run.restarted("part 0.1", continues=says[1])
    assert begins(begun) == dict.fromkeys(PARTS[:2], (first, STEPS))


def test_a_part_takes_its_whole_replica_back_to_the_first_step_that_a_shard_lacks(run: Run) -> None:
    run.report("part 1.0", 8, held=6)
    run.report("part 1.1", 7, held=5)
    effects = run.feed(Died("part 1.1", 0, "killed by signal 9"))
    assert of(Restart, effects) == [
        Restart((("part 1.0", 1), ("part 1.1", 1)), None, "part 1.1: killed by signal 9")
    ]
    assert of(Warn, effects)[0].text == "part 1.1: killed by signal 9; replica 1 is started again"
    assert run.feed(Died("part 1.0", 0)) == [], "the interpreter ended it"
    assert run.receive("part 1.0", Report(9, 1, 0.0, 0, 0, 0), incarnation=0) == []
    assert not messages(Directory, run.hello("part 1.0")), "it is of no use without the other part"
    assert set(messages(Directory, run.hello("part 1.1"))) == {*SHARDS, *PARTS[2:]}
    run.receive("part 1.0", ResumeStep(6))
    assert begins(run.receive("part 1.0", Ready())) == {}
    assert begins(run.receive("part 1.1", Ready())) == {}
    begun = run.receive("part 1.1", ResumeStep(5))
    assert begins(begun) == dict.fromkeys(PARTS[2:], (5, STEPS))
    assert of(Warn, begun)[0].text == "replica 1 begins again at step 5"
    assert run.receive("part 1.0", ResumeStep(6)) == [], "a repeat"
    assert run.machine.mode.steps_done == (0, 5)
    assert run.report("part 1.0", 6), "what it did before and does again"
    assert run.report("part 0.0", 1), "the other replica goes on"


def test_silence_is_death(run: Run) -> None:
    hearing = [name for name in HOSTS if name != "shard 0"]
    effects = run.wait(5.0, hearing=hearing)
    assert [w.text for w in of(Warn, effects)] == [
        "shard 0 has been silent for 2.0 s",
        "shard 0: silent for 4.0 s; restarted from the start",
    ]
    assert [restart.hosts for restart in of(Restart, effects)] == [(("shard 0", 1),)]


def test_a_suspect_that_speaks_is_left_alone(run: Run) -> None:
    run.wait(3.0, hearing=[name for name in HOSTS if name != "shard 0"])
    [warning] = of(Warn, run.receive("shard 0", Heartbeat(0)))
    assert "shard 0 sends again" in warning.text
    assert not of(Restart, run.wait(10.0))


def test_a_shard_comes_back_from_the_committed_checkpoint_and_the_directory_is_sent(run: Run) -> None:
    run.wait(30.0)
    for shard in SHARDS:
        run.saved(shard, 1)
    effects = run.feed(Died("shard 1", 0, "killed"))
    assert of(Restart, effects) == [Restart((("shard 1", 1),), 1, "killed")]
    directories = messages(Directory, run.hello("shard 1"))
    assert set(directories) == {*PARTS, "shard 1"}
    to_part = directories["part 0.0"]
    assert [(peer.name, peer.incarnation) for peer in to_part.peers] == [("shard 1", 1)], "only the change"
    assert (to_part.since, to_part.revision) == (1, 2)
    assert [peer.name for peer in directories["shard 1"].peers] == list(PARTS), "a new process gets all"
    assert begins(run.receive("shard 1", Ready(7))) == {}, "parts go on by themselves"


def test_a_host_that_dies_again_and_again_ends_the_run(run: Run) -> None:
    for _ in range(4):
        run.feed(Died("part 0.0", run.incarnations["part 0.0"], "segmentation fault"))
        run.restarted("part 0.0", "part 0.1")
    run.report("part 0.0", 1)  # it got further: counted anew
    for _ in range(4):
        run.feed(Died("part 0.0", run.incarnations["part 0.0"], "segmentation fault"))
        run.restarted("part 0.0", "part 0.1")
        run.report("part 0.0", 1)  # no further than before
    [failure] = of(AbortRun, run.feed(Died("part 0.0", run.incarnations["part 0.0"], "segmentation fault")))
    assert failure.reason == "part 0.0 died 5 times without getting any further: segmentation fault"


def test_an_error_of_the_user_is_tried_three_times(run: Run) -> None:
    error = Failed("ZeroDivisionError: division by zero", "Traceback ...")
    for times in (1, 2):
        effects = run.receive("part 0.1", error)
        assert [restart.hosts for restart in of(Restart, effects)] == [
            (("part 0.0", times), ("part 0.1", times))
        ]
        assert f"part 0.1 failed, {times} of 3 times: ZeroDivisionError" in of(Warn, effects)[0].text
        assert run.receive("part 0.1", error, incarnation=times - 1) == [], "a repeat"
        run.restarted("part 0.0", "part 0.1")
    effects = run.receive("part 0.1", error)
    assert of(AbortRun, effects) == [
        AbortRun(
            "part 0.1 failed 3 times: ZeroDivisionError: division by zero; correct what its traceback shows",
            "Traceback ...",
        )
    ]
    assert set(messages(Stop, effects)) == set(HOSTS)


def test_an_error_that_is_received_after_the_death_counts_too(run: Run) -> None:
    run.feed(Died("part 0.1", 0))
    effects = run.receive("part 0.1", Failed("too late", ""), incarnation=0)
    assert [type(effect) for effect in effects] == [Warn], "counted, and not restarted a second time"
