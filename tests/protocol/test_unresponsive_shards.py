"""A shard that is alive and does not answer: it is named and replaced, replicas are not, and not for ever."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from partita.engine.protocol.batch_messages import Command, CommandResult, MissingUnits
from partita.engine.protocol.coordinator_effects import AbortRun, CoordinatorEffect, Restart, Timeouts, Warn
from partita.engine.protocol.events import Received, Tick
from partita.engine.protocol.messages import Heartbeat, WaitReport
from tests.protocol.coordinating import PARTS, Run, of
from tests.protocol.directing import Stage, staged

PATIENCE = Timeouts(checkpoint_every_s=None, answer_s=60.0, stall_s=120.0)


@pytest.fixture
def run() -> Run:
    return Run(timeouts=PATIENCE).start()


def wait(run: Run, seconds: float, parts: Sequence[str], shard: str) -> list[CoordinatorEffect]:
    """Lets time pass; at its end these parts report to have waited for this shard since the start."""
    effects = run.wait(seconds)
    for part in parts:
        effects += run.receive(part, WaitReport(shard, "an answer", seconds))
    return effects + run.wait(0.25)


def test_a_shard_that_answers_nobody_is_replaced_and_replicas_are_not(run: Run) -> None:
    assert not of(Restart, wait(run, 59.0, PARTS, "shard 1"))
    effects = wait(run, 1.0, (), "shard 1")
    why = "shard 1: part 0.0 has no answer of shard 1 for 60 s (60 s are allowed)"
    assert f"{why}; it is replaced when its lease has ended" in [w.text for w in of(Warn, effects)]
    assert not of(Restart, run.wait(3.0))
    effects = run.wait(1.25)
    assert [restart.hosts for restart in of(Restart, effects)] == [(("shard 1", 1),)]
    assert f"{why}; restarted from the start" in [warning.text for warning in of(Warn, effects)]
    assert not of(Restart, run.wait(119.0)), "nobody else is restarted while the shard starts"


def test_who_gets_on_waits_no_more(run: Run) -> None:
    wait(run, 30.0, PARTS, "shard 1")
    for part in PARTS:
        run.report(part, 1)
    assert not of(Restart, run.wait(100.0))


def test_a_wait_for_another_part_is_not_a_shards_fault(run: Run) -> None:
    wait(run, 30.0, PARTS[:1], "shard 1")
    run.receive("part 0.0", WaitReport("part 0.1", "h1", 5.0))
    restarts = of(Restart, run.wait(125.0))
    assert {name for restart in restarts for name, _ in restart.hosts} == set(PARTS), "by their own limit"


def test_a_shard_that_answers_another_replica_is_not_replaced(run: Run) -> None:
    for step in range(1, 7):
        run.wait(10.0)
        for part in PARTS[2:]:
            run.report(part, step)
    effects = run.receive("part 0.0", WaitReport("shard 1", "an answer", 61.0)) + run.wait(0.25)
    assert [restart.hosts for restart in of(Restart, effects)] == [(("part 0.0", 1), ("part 0.1", 1))]
    assert any("no answer of shard 1 for 60 s" in warning.text for warning in of(Warn, effects))


def test_a_shard_that_stays_unresponsive_ends_the_run_with_a_sentence(run: Run) -> None:
    effects: list[CoordinatorEffect] = []
    for _ in range(4):
        assert not of(AbortRun, effects)
        wait(run, 60.0, PARTS, "shard 0")
        effects = run.wait(4.5)
        assert of(Restart, effects)
        run.restarted("shard 0")
    [failure] = of(AbortRun, wait(run, 60.0, PARTS, "shard 0"))
    assert failure.reason.startswith(
        "shard 0 is alive and does not answer, also after 4 replacements: part 0.0 has no answer of shard 0"
    )


def mute(stage: Stage, name: str, seconds: float, *, says: bool = False) -> list[str]:
    """All hosts send heartbeats for so long. Returns what is restarted. `says`: the shard reports to be at
    work.
    """
    before = len(stage.effects)
    for _ in range(round(seconds)):
        for host, incarnation in list(stage.incarnations.items()):
            stage.feed(Received(host, incarnation, Heartbeat(incarnation)), wait_s=0.0)
        if says:
            number = stage.sent(Command)[-1][1].number  # type: ignore[attr-defined]
            stage.feed(Received(name, stage.incarnations[name], MissingUnits(number, ())), wait_s=0.0)
        stage.feed(Tick(), wait_s=1.0)
    restarts = [effect for effect in stage.effects[before:] if isinstance(effect, Restart)]
    return [host for restart in restarts for host, _ in restart.hosts]


@pytest.mark.parametrize(("says", "limit_s"), [(False, 60), (True, 600)])
def test_a_command_that_a_shard_does_not_answer_has_a_deadline(says: bool, limit_s: int) -> None:
    stage = staged(timeouts=Timeouts(checkpoint_every_s=None))
    stage.play(until=lambda: stage.coordinator.plan.answered == 2)
    stage.events = type(stage.events)(
        event
        for event in stage.events
        if not (
            isinstance(event, Received)
            and event.sender == "shard 1"
            and isinstance(event.message, CommandResult)
        )
    )
    stage.deliver = lambda to, message: not (to == "shard 1" and isinstance(message, Command))
    stage.play()
    assert mute(stage, "shard 1", limit_s - 3, says=says) == []
    assert mute(stage, "shard 1", 10, says=says) == ["shard 1"]
    sent = [effect.text for effect in stage.effects if isinstance(effect, Warn)]
    what = "it is at command" if says else "no answer to command"
    assert any(f"shard 1: {what}" in text and "what the method asks for" in text for text in sent), sent
    stage.deliver = lambda to, message: True
    stage.play()
    assert stage.coordinator.plan.outcome is not None


def test_a_wait_for_files_is_a_line_and_no_shards_fault(run: Run) -> None:
    effects = run.receive("part 0.0", WaitReport("files", "examples of 'image'", 8.0))
    assert effects == [Warn("part 0.0 waits for files, for examples of 'image', since 8 s")]
    assert not of(Restart, run.wait(65.0))
