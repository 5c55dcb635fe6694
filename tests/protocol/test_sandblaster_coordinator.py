"""The coordinator of batch methods: the same scalars whatever dies, and nothing done twice without need."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from partita.engine import Outcome
from partita.engine.protocol import Message
from partita.engine.protocol.batch_messages import Assignment, AssignmentResult, Command, CommandResult
from partita.engine.protocol.checkpoint_messages import Saved
from partita.engine.protocol.commands import Evaluate, Iterated, Restore, Segment, Snapshot, Steps, dot, scale
from partita.engine.protocol.coordinator_effects import (
    AbortRun,
    AppendJournal,
    EndRun,
    Progress,
    StopRequested,
    Timeouts,
)
from partita.engine.protocol.events import Received, Tick
from partita.engine.protocol.host_lifecycle import Phase
from partita.engine.protocol.journaled_plan import JournalMismatch
from tests.protocol.directing import STEPS, Stage, descent, staged


def finished(stage: Stage) -> EndRun:
    stage.play()
    *_, last = stage.effects
    assert isinstance(last, EndRun)
    return last


def undisturbed() -> Stage:
    stage = staged(replicas=1)
    finished(stage)
    return stage


def test_a_method_is_played_to_its_end() -> None:
    stage = staged()
    done = finished(stage)
    assert done.complete
    assert done.outcome == Outcome("stopped", f"{STEPS} steps are done")
    assert done.steps == (STEPS,)
    assert [commit.position for commit in stage.commits] == [STEPS + 1]
    shown = [effect for effect in stage.effects if isinstance(effect, Progress)]
    assert [one.step for one in shown] == list(range(1, STEPS + 1))
    assert shown[0].values["loss"] > shown[-1].values["loss"]


@pytest.mark.parametrize(("replicas", "machines"), [(1, 1), (2, 1), (4, 1), (2, 2)])
def test_scalars_do_not_depend_on_who_computes(replicas: int, machines: int) -> None:
    stage = staged(replicas=replicas, machines=machines)
    finished(stage)
    if machines == 1:
        assert stage.journal == undisturbed().journal
    assert len(stage.journal) == STEPS + 1


def test_a_record_comes_before_what_follows_from_it() -> None:
    stage = undisturbed()
    kinds = [type(e).__name__ for e in stage.effects if isinstance(e, AppendJournal | Progress)]
    assert kinds[:3] == ["AppendJournal", "AppendJournal", "Progress"]


def during(stage: Stage, index: int) -> Callable[[], bool]:
    """Returns a condition: so many requests are recorded, and the next one is assigned."""

    def reached() -> bool:
        return len(stage.journal) >= index and stage.coordinator.mode._commands.command is not None

    return reached


@pytest.mark.parametrize("index", range(STEPS + 1))
def test_a_dead_shard_takes_all_back_and_changes_nothing(index: int) -> None:
    stage = staged(timeouts=Timeouts(checkpoint_every_s=0.3))
    stage.play(until=during(stage, index))
    stage.die("shard 1")
    done = finished(stage)
    assert done.complete
    assert stage.journal == undisturbed().journal
    restores = [m for _, m in stage.sent(Command) if isinstance(m, Command) and restored(m)]
    assert len(restores) == 2


def restored(command: Command) -> bool:
    return any(isinstance(operation, Restore) for operation in command.operations)


@pytest.mark.parametrize("index", range(STEPS + 1))
def test_a_dead_replica_changes_nothing(index: int) -> None:
    stage = staged(replicas=2)
    stage.play(until=during(stage, index))
    stage.die("part 0.0")
    assert finished(stage).complete
    assert stage.journal == undisturbed().journal


@pytest.mark.parametrize("kept", range(STEPS + 2))
def test_a_run_goes_on_from_its_journal(kept: int) -> None:
    """A checkpoint may be older than the journal's end."""
    whole = undisturbed()
    stage = staged(journal=whole.journal[:kept], position=0)
    assert sum(stage.coordinator.mode.steps_done) == max(kept - 1, 0)
    done = finished(stage)
    assert done.complete
    assert [*whole.journal[:kept], *stage.journal] == whole.journal
    # Each x depends on the gradient before it, so descent needs all; but none is recorded a second time.
    assert [e.index for e in stage.effects if isinstance(e, AppendJournal)] == list(range(kept, STEPS + 1))


def test_what_a_checkpoint_holds_is_not_done_again() -> None:
    whole = undisturbed()
    stage = staged(journal=whole.journal, position=STEPS + 1)
    stage.play()
    assert [type(effect) for effect in stage.effects] == [EndRun]


def test_a_limit_may_grow() -> None:
    whole = undisturbed()
    stage = staged(begin=lambda: descent(STEPS + 2), journal=whole.journal, position=0)
    assert finished(stage).steps == (STEPS + 2,)


def test_a_journal_of_another_method_is_refused() -> None:
    journal = undisturbed().journal
    with pytest.raises(JournalMismatch, match="asks for something else after 1 of them"):
        staged(begin=lambda: other(), journal=journal)
    with pytest.raises(JournalMismatch, match=f"asks for something else after {STEPS} of them"):
        staged(begin=lambda: descent(STEPS - 1), journal=journal)
    with pytest.raises(JournalMismatch, match="its end is lost"):
        staged(journal=journal[:1], position=2)


def other() -> Steps:
    evaluate = Evaluate((Segment("g", 0, 7),))
    yield (evaluate, dot("g", "g"))
    yield (evaluate, dot("g", "x"))
    return Outcome("converged", "it is another one")


def test_messages_that_are_lost_are_repeated() -> None:
    stage = staged()
    lost: set[str] = set()

    def first_is_lost(to: str, message: Message) -> bool:
        key = f"{to} {type(message).__name__} {getattr(message, 'number', getattr(message, 'sequence', ''))}"
        if isinstance(message, Command | Assignment) and key not in lost:
            lost.add(key)
            return False
        return True

    stage.deliver = first_is_lost
    for _ in range(200):
        stage.play()
        if stage.coordinator.phase is Phase.OVER:
            break
        stage.feed(Tick(), wait_s=0.5)
    assert stage.journal == undisturbed().journal


def test_late_answers_of_other_commands_count_for_nothing() -> None:
    stage = staged()
    stage.play(until=during(stage, 2))
    number = stage.coordinator.mode._commands.number
    for wrong in (number - 1, number + 100):
        stage._send("shard 0", CommandResult(wrong, (1e9,)))
        stage._send("part 0.0", AssignmentResult(0, wrong, 0, 1e9, 0))
    finished(stage)
    assert stage.journal == undisturbed().journal


def test_ctrl_c_keeps_what_is_recorded() -> None:
    stage = staged()
    stage.play(until=during(stage, 2))
    stage.feed(StopRequested())
    stage.play()
    *_, done = stage.effects
    assert isinstance(done, EndRun)
    assert not done.complete
    assert [commit.position for commit in stage.commits] == [len(stage.journal)]
    resend = staged(journal=stage.journal, position=0)
    finished(resend)
    assert [*stage.journal, *resend.journal] == undisturbed().journal


def test_ctrl_c_asks_for_one_checkpoint_however_slow_the_disk_is() -> None:
    stage = staged()
    stage.play(until=during(stage, 2))
    stage.feed(StopRequested())
    stragglers: list[Received] = []
    while stage.events:
        event = stage.events.popleft()
        if isinstance(event, Received) and isinstance(event.message, Saved):
            stragglers.append(event)
        else:
            stage.feed(event)
    asked = [m for _, m in stage.sent(Command) if isinstance(m, Command) and snapshots(m)]
    assert len(asked) == len(stragglers) == 2
    for event in stragglers:
        stage.feed(event)
    stage.play()
    assert isinstance(stage.effects[-1], EndRun) and len(stage.commits) == 1


def snapshots(command: Command) -> bool:
    return any(isinstance(operation, Snapshot) for operation in command.operations)


def test_ctrl_c_does_not_wait_long() -> None:
    stage = staged()
    stage.play(until=during(stage, 1))
    stage.feed(StopRequested())
    stage.feed(Tick(), wait_s=3.5)
    assert isinstance(stage.effects[-1], EndRun)


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (lambda: ("x",), "must yield a tuple of operations"),
        (lambda: (Evaluate(()), Evaluate(())), "two evaluations at once"),
        (lambda: (Snapshot(1),), "asked for a checkpoint"),
        (lambda: (Evaluate(()), scale("x", 2.0)), "changes 'x' where it has just evaluated"),
    ],
)
def test_a_method_that_asks_for_nonsense_ends_the_run(ask: Callable[[], object], what: str) -> None:
    def begin() -> Steps:
        yield (dot("x", "x"),)
        yield ask()  # type: ignore[misc]
        return Outcome("converged", "")

    stage = staged(begin=begin)
    stage.play()
    *_, last = stage.effects
    assert isinstance(last, AbortRun)
    assert what in last.reason
    assert len(stage.journal) == 1


def test_a_method_must_say_how_it_ended() -> None:
    def begin() -> Steps:  # type: ignore[return]
        yield (dot("x", "x"),)

    stage = staged(begin=begin)
    stage.play()
    *_, last = stage.effects
    assert isinstance(last, AbortRun)
    assert "a method ended with None; it must return an Outcome" in last.reason
    assert len(stage.journal) == 1


def test_what_a_method_raises_ends_the_run_with_its_traceback() -> None:
    def begin() -> Steps:
        yield (dot("x", "x"),)
        yield Iterated(1, 0.0, 0.0, 1.0, 0)
        raise ZeroDivisionError("my own mistake")

    stage = staged(begin=begin)
    stage.play()
    *_, last = stage.effects
    assert isinstance(last, AbortRun)
    assert "the method failed: ZeroDivisionError: my own mistake" in last.reason
    assert "Traceback" in last.traceback
