"""The instruction scheduler alone: what runs, what is sent, and what is received."""

from __future__ import annotations

import pytest

from partita.engine.protocol import InstructionScheduler, Message
from partita.engine.protocol.events import Received, Refuse, Send
from partita.engine.protocol.instruction_scheduler import (
    AHEAD,
    BeginStep,
    Completed,
    Compute,
    Kind,
    Place,
    ScheduledInstruction,
    StepOver,
    Transmit,
)
from partita.engine.protocol.messages import Credit, Fetch, Tensor
from tests.protocol.machines import feed

ROWS = (((0, 2),),)


def tensor(step: int, *, sender: str = "b", buffer: str = "x", payload: object = "numbers") -> Received:
    return Received(sender, 0, Tensor(step, buffer, ROWS), payload)


def exchange() -> InstructionScheduler:
    """Computes, sends to b, receives from b, and computes with both."""
    return InstructionScheduler(
        [
            ScheduledInstruction(Kind.COMPUTE),
            ScheduledInstruction(Kind.SEND, (0,), "b", "y", ROWS),
            ScheduledInstruction(Kind.RECEIVE, (), "b", "x", ROWS),
            ScheduledInstruction(Kind.COMPUTE, (0, 2)),
        ]
    )


def test_a_step_runs_when_its_inputs_are_there() -> None:
    machine = exchange()
    assert feed(machine, BeginStep(0)) == [Compute(0)]
    assert machine.waits_for == (("b", "x"),)
    assert feed(machine, Completed(0)) == [Transmit("b", Tensor(0, "y", ROWS), 1)]
    assert feed(machine, tensor(0)) == [Place(2, "numbers"), Compute(3)]
    assert feed(machine, Completed(3)) == []
    assert not machine.may_begin()
    assert feed(machine, Completed(1)) == [StepOver(0)]
    assert machine.may_begin()


def test_a_message_of_the_next_step_waits_for_it() -> None:
    machine = exchange()
    assert feed(machine, tensor(0)) == []
    assert feed(machine, BeginStep(0)) == [Place(2, "numbers"), Compute(0)]
    assert feed(machine, tensor(1, payload="later")) == []
    feed(machine, Completed(0))
    feed(machine, Completed(1))
    assert feed(machine, Completed(3)) == [StepOver(0)]
    assert feed(machine, BeginStep(1)) == [Place(2, "later"), Compute(0)]


def test_a_receive_waits_until_its_rows_are_free() -> None:
    machine = InstructionScheduler(
        [ScheduledInstruction(Kind.COMPUTE), ScheduledInstruction(Kind.RECEIVE, (0,), "b", "x", ROWS)]
    )
    assert feed(machine, BeginStep(0)) == [Compute(0)]
    assert feed(machine, tensor(0)) == []
    assert feed(machine, Completed(0))[:1] == [Place(1, "numbers")]


def test_lanes_bound_what_is_computed_at_once_and_the_first_in_the_list_goes_first() -> None:
    machine = InstructionScheduler([ScheduledInstruction(Kind.COMPUTE) for _ in range(4)], lanes=2)
    assert feed(machine, BeginStep(0)) == [Compute(0), Compute(1)]
    assert feed(machine, Completed(1)) == [Compute(2)]
    assert feed(machine, Completed(0)) == [Compute(3)]
    assert feed(machine, Completed(3)) == []
    assert feed(machine, Completed(2)) == [StepOver(0)]


@pytest.mark.parametrize(
    "event",
    [
        tensor(0, sender="c"),
        tensor(0, buffer="z"),
        Received("b", 0, Tensor(0, "x", (((0, 3),),)), "numbers"),
        tensor(-1),
        tensor(AHEAD + 1),
        Received("b", 0, Credit(0)),
        Received("b", 0, Fetch(0)),
    ],
)
def test_what_no_instruction_waits_for_is_refused_and_changes_nothing(event: Received) -> None:
    machine = exchange()
    feed(machine, BeginStep(0))
    (refusal,) = feed(machine, event)
    assert isinstance(refusal, Refuse)
    assert machine.waits_for == (("b", "x"),)


def test_a_repeated_message_is_refused() -> None:
    machine = exchange()
    feed(machine, tensor(0))
    (refusal,) = feed(machine, tensor(0))
    assert isinstance(refusal, Refuse)


def test_a_sender_waits_for_credit_that_its_receiver_gives() -> None:
    sender = InstructionScheduler([ScheduledInstruction(Kind.SEND, (), "b", "x", ROWS)], first_step=5)
    for step in (5, 6):
        assert sender.may_begin()
        feed(sender, BeginStep(step))
        assert feed(sender, Completed(0)) == [StepOver(step)]
    assert not sender.may_begin()
    assert sender.waits_for == (("b", "credit"),)
    credit: Message = Credit(5)
    feed(sender, Received("b", 0, credit))
    assert sender.may_begin()
    listener = InstructionScheduler([ScheduledInstruction(Kind.RECEIVE, (), "a", "x", ROWS)], first_step=5)
    feed(listener, BeginStep(5))
    assert feed(listener, tensor(5, sender="a")) == [Place(0, "numbers"), Send("a", Credit(5)), StepOver(5)]


def test_a_late_credit_of_the_plan_before_is_taken() -> None:
    """Hosts that play one plan after another count their steps on, so a late message has an earlier step."""
    sender = InstructionScheduler([ScheduledInstruction(Kind.SEND, (), "b", "x", ROWS)], first_step=100)
    assert feed(sender, Received("b", 0, Credit(21))) == []
    feed(sender, BeginStep(100))
    assert feed(sender, Completed(0)) == [StepOver(100)]


def test_an_empty_program_is_over_at_once() -> None:
    assert feed(InstructionScheduler([]), BeginStep(0)) == [StepOver(0)]


def test_a_message_of_another_size_is_refused() -> None:
    machine = InstructionScheduler([ScheduledInstruction(Kind.RECEIVE, (), "b", "x", ROWS, n_bytes=8)])
    feed(machine, BeginStep(0))
    (refusal,) = feed(machine, tensor(0, payload=b"1234"))
    assert isinstance(refusal, Refuse)
    assert feed(machine, tensor(0, payload=b"12345678"))[0] == Place(0, b"12345678")


def test_a_step_of_a_phase_plays_its_instructions_alone() -> None:
    """A phase may be played again before the next; its instructions wait for none of the other."""
    machine = InstructionScheduler(
        [
            ScheduledInstruction(Kind.COMPUTE),
            ScheduledInstruction(Kind.SEND, (0,), "b", "y", ROWS),
            ScheduledInstruction(Kind.RECEIVE, (), "b", "x", ROWS),
            ScheduledInstruction(Kind.COMPUTE, (0, 2)),
        ],
        phases=((0, 1), (2, 3)),
    )
    for step in range(2):
        assert feed(machine, BeginStep(step, phase=0)) == [Compute(0)]
        assert feed(machine, Completed(0)) == [Transmit("b", Tensor(step, "y", ROWS), 1)]
        assert feed(machine, Completed(1)) == [StepOver(step)]
    assert feed(machine, BeginStep(2, phase=1)) == []
    assert machine.waits_for == (("b", "x"),)
    assert feed(machine, tensor(2)) == [Place(2, "numbers"), Compute(3)]
    assert feed(machine, Completed(3)) == [StepOver(2)]
