"""Records of a shard that executes commands: whatever they are cut off, it goes on as if nothing had died."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol.batch_messages import (
    Command,
    CommandResult,
    CommandsMissing,
    ContributionAck,
    EvaluationSum,
    MissingUnits,
)
from partita.engine.protocol.commands import (
    Evaluate,
    Operation,
    Request,
    Restore,
    Segment,
    Snapshot,
    dot,
    scale,
    zero,
)
from partita.engine.protocol.durability import Kept, Record
from partita.engine.protocol.events import Persist, Received
from partita.engine.protocol.shard_effects import LoadCheckpoint, OperationsDone
from partita.engine.protocol.sum_then_continue import without_replies
from tests.protocol.textual_shard import RANGES, Shard, Text

BOTH = Evaluate((Segment("g", 0, 5), Segment("h", 3, 0), Segment("k", 5, 3)))  # work units 0 to 4
REQUESTS: tuple[Request, ...] = (
    (zero("a"), scale("x", 2.0), dot("x", "x")),
    (scale("d", 2.0), BOTH, dot("g", "k"), zero("b")),
    (Evaluate((Segment("g", 0, 2),)), dot("x", "g")),
    (Restore(None),),
)


def does(shard: Shard, number: int, request: Request, order: Sequence[int] = range(5)) -> None:
    """Commands it, and contributes everything that it lacks."""
    shard.command(number, *request)
    for unit in order:
        for machine in RANGES:
            if shard.policy.evaluation == number and unit < (5 if BOTH in request else 1):
                shard.contribute(number, unit, machine)
    shard.feed(Kept(shard.machine.version))


def calm(requests: Sequence[Request]) -> Shard:
    shard = Shard(keeps=True)
    for number, request in enumerate(requests, 1):
        does(shard, number, request)
    return shard


def replayed(records: Sequence[Record]) -> Shard:
    """A process that has carried out these records again, and has a lease."""
    shard = Shard(keeps=True, leased=False, slow=True)
    for record in records:
        shard.carry_out(shard.policy.replay(record))
        while shard.working is not None:
            done = shard.executed()
            shard.carry_out(without_replies(shard.policy.operations_done(done.scalars, leased=True)))
        shard.policy.validate()
    assert not shard.sent, "nobody asked"
    fresh = Shard(keeps=True)
    fresh.policy, fresh.machine.policy = shard.policy, shard.policy
    fresh.vectors, fresh.done = shard.vectors, shard.done
    fresh.feed(Kept(shard.policy.version))
    return fresh


def executed(shard: Shard) -> list[Operation | LoadCheckpoint]:
    return [one for one in shard.done if not isinstance(one, Persist)]


drawn = st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=5)


@given(drawn, st.data())
def test_wherever_its_records_are_cut_off_it_goes_on_to_the_same_vectors(
    requests: list[Request], data: st.DataObject
) -> None:
    straight = calm(requests)
    cut = data.draw(st.integers(0, len(straight.records)), label="records that are left")
    again = replayed(straight.records[:cut])
    assert again.policy.version == cut
    for number in range(max(again.policy.number, 1), len(requests) + 1):
        does(again, number, requests[number - 1], data.draw(st.permutations(range(5))))
    assert executed(again) == executed(straight), "each operation once, in order"
    assert again.vectors == straight.vectors
    assert again.policy.counts() == straight.policy.counts() or cut < len(straight.records)
    assert again.command(len(requests), *requests[-1]) == straight.command(len(requests), *requests[-1])


@given(drawn, st.permutations(range(5)))
def test_a_copy_in_an_evaluation_asks_for_all_of_it(requests: list[Request], order: list[int]) -> None:
    shard = calm(requests)
    number = len(requests) + 1
    shard.command(number, *REQUESTS[1])
    shard.contribute(number, order[0], 0)
    assert shard.policy.may_be_copied
    copy = Shard(keeps=True)
    copy.policy = type(shard.policy)(
        shard.policy._own, unit_size=2, restored=shard.policy.counts(), keeps=True
    )
    copy.machine.policy = copy.policy
    copy.policy.validate()
    assert copy.command(number, *REQUESTS[1]) == [MissingUnits(number, ((0, 5),))]
    does(shard, number, REQUESTS[1], order)
    does(copy, number, REQUESTS[1], order)
    assert {name: copy.vectors[name, 0] for name in ("g", "k")} == {
        name: shard.vectors[name, 0] for name in ("g", "k")
    }


def test_a_result_waits_for_its_records_and_points_do_not() -> None:
    shard = Shard(keeps=True)
    assert shard.command(1, zero("a")) == []
    shard.feed(Kept(1))
    assert shard.sent == [("coordinator", CommandResult(1, ()))]
    shard.command(2, *REQUESTS[1])
    for unit in range(5):
        for machine in RANGES:
            assert CommandResult not in map(type, shard.contribute(2, unit, machine))
    messages = [record.request.message for record in shard.records]
    assert messages[1:] == [Command(2, REQUESTS[1]), EvaluationSum(2, "g"), EvaluationSum(2, "k")]
    shard.feed(Kept(3))
    assert shard.command(2, *REQUESTS[1]) == []
    shard.feed(Kept(4))
    assert [type(message) for _, message in shard.sent] == [CommandResult]


def test_a_contribution_to_an_evaluation_that_begins_again_comes_too_early() -> None:
    """Its part has the point from the process before; an acknowledgement would lose it."""
    shard = Shard(keeps=True, slow=True)
    shard.command(1, *REQUESTS[1])
    assert shard.policy.busy and shard.contribute(1, 0) == []
    shard.work()
    assert shard.contribute(1, 0) == [ContributionAck(1, 0)]
    assert shard.policy.evaluation == 1 and shard.kept


def test_a_result_that_waited_is_not_sent_behind_a_newer_command() -> None:
    shard = Shard(keeps=True)
    shard.command(1, zero("a"))
    shard.command(2, Restore(None))
    shard.sent.clear()
    shard.feed(Kept(2))
    assert shard.sent == [("coordinator", CommandResult(2, ()))]


def test_a_record_is_executed_again_without_its_file() -> None:
    shard = Shard(keeps=True)
    shard.command(1, Snapshot(3), zero("a"))
    assert shard.done == [Persist(3, 0, 0, seen={"coordinator": (0, 0)}), zero("a")]
    assert replayed(shard.records).done == [zero("a")]


def test_a_shard_that_lacks_commands_says_so_unless_it_goes_back() -> None:
    shard = Shard(keeps=True)
    shard.command(1, zero("a"))
    assert shard.command(3, zero("b")) == [CommandsMissing(3, 1)]
    assert shard.done == [zero("a")]
    shard.command(2, *REQUESTS[1])
    assert shard.command(3, zero("b")) == [CommandsMissing(3, 2)], "its sums were lost"
    assert shard.contribute(4, 0) == [], "it comes again, when the command has come"
    assert shard.contribute(1, 0) == [ContributionAck(1, 0)]
    shard.command(5, Restore(None))
    assert shard.policy.number == 5 and shard.done[-1] == LoadCheckpoint(None)


@pytest.mark.parametrize(
    ("message", "n_bytes", "reason"),
    [
        (Command(1, (zero("a"),)), 0, "command 1 after 2"),
        (EvaluationSum(2, "g"), 31, "a sum of 31 bytes, not 32"),
        (EvaluationSum(1, "g"), 32, "a sum of 'g' for evaluation 1, in command 2"),
        (EvaluationSum(2, "a"), 32, "a sum of 'a' for evaluation 2, in command 2"),
        (CommandResult(2, ()), 0, "a record of a CommandResult"),
    ],
)
def test_a_record_that_cannot_follow_is_named(message: object, n_bytes: int, reason: str) -> None:
    shard = calm(REQUESTS[:1])
    shard.command(2, *REQUESTS[1])
    request = Received("shard 0", 0, message, Text("", n_bytes))  # type: ignore[arg-type]
    assert shard.policy.record_reason(Record(3, request)) == reason


def test_operations_that_end_in_a_copy_go_on_with_the_rest() -> None:
    """As in a backup, where they may take long."""
    shard = Shard(keeps=True, leased=False, slow=True)
    command = Received("coordinator", 0, Command(1, (zero("a"), Restore(None), dot("x", "x"))))
    shard.carry_out(shard.policy.replay(Record(1, command)))
    while shard.working is not None:
        assert shard.policy.busy and not shard.policy.may_be_copied
        effect, shard.working = shard.working, None
        scalars = (2.0,) if effect is not None and "Dots" in str(effect) else ()
        shard.carry_out(shard.policy.operations_done(OperationsDone(scalars).scalars, leased=True)[:1])
    counts = shard.policy.counts().command
    assert counts is not None and counts.is_done and counts.scalars == (2.0,)
