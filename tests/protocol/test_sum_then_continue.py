"""A shard of vectors alone: each command once, each contribution once, one order of sums."""

from __future__ import annotations

import pytest

from partita.engine.protocol.batch_messages import (
    CommandResult,
    Contribution,
    ContributionAck,
    FetchPoint,
    MissingUnits,
    Point,
)
from partita.engine.protocol.checkpoint_messages import Save, Saved
from partita.engine.protocol.commands import (
    Dots,
    Evaluate,
    Largest,
    Restore,
    Segment,
    Snapshot,
    copy,
    dot,
    scale,
    zero,
)
from partita.engine.protocol.events import Persist, Persisted, Received, Tick
from partita.engine.protocol.messages import Fetch, Heartbeat
from partita.engine.protocol.shard_effects import Fenced, LoadCheckpoint
from tests.protocol.textual_shard import HALF, RANGES, Shard, Text


def test_a_command_is_done_once_and_answered_as_often_as_it_is_sent() -> None:
    shard = Shard()
    request = (copy("d", "g"), Dots(("d",), ("g", "x")), Largest("g"))
    assert shard.command(1, *request) == [CommandResult(1, (2.5, 2.5, 3.5))]
    assert shard.done == [*request]
    assert shard.command(1, *request) == shard.command(1) == [CommandResult(1, (2.5, 2.5, 3.5))]
    assert shard.command(3, scale("d", 2.0)) == [CommandResult(3, ())]
    assert shard.command(1, *request) == shard.command(2, *request) == [], "older than the last"
    assert shard.done == [*request, scale("d", 2.0)]


def test_an_evaluation_pauses_the_command_where_it_stands() -> None:
    shard = Shard()
    before, after = (copy("x", "d"), dot("x", "x")), (Largest("g"), dot("g", "d"))
    assert shard.command(4, *before, HALF, *after) == []
    assert (shard.done, shard.policy.evaluation) == ([*before], 4)
    for machine in (0, 1):
        for unit in (2, 0, 1):
            last = (machine, unit) == (1, 1)
            answer = [CommandResult(4, (2.5, 3.5, 4.5))] if last else []
            assert shard.contribute(4, unit, machine) == [*answer, ContributionAck(4, unit)]
    assert shard.done == [*before, *after]
    assert shard.vectors == {("g", 0): "((0+1)+2)", ("g", 1): "((0+1)+2)"}
    assert (shard.policy.evaluation, shard.kept) == (None, {})
    assert shard.contribute(4, 1) == [ContributionAck(4, 1)], "over"


def test_the_first_of_a_work_unit_and_machine_counts_and_all_are_acknowledged() -> None:
    shard = Shard()
    shard.command(1, HALF)
    for replica in (0, 1, 0):
        assert shard.contribute(1, 0, replica=replica) == [ContributionAck(1, 0)]
    assert shard.kept == {(0, 0): "0"}
    assert shard.contribute(7, 1) == [ContributionAck(7, 1)], "of another evaluation"
    assert shard.kept == {(0, 0): "0"}


def test_a_repeat_of_a_command_under_way_reports_what_is_missing() -> None:
    shard = Shard()
    long = Evaluate((Segment("a", 0, 8), Segment("b", 8, 3)))  # work units 0 to 3, and 4, 5
    shard.command(1, long)
    assert shard.command(1, long) == [MissingUnits(1, ((0, 6),))]
    for unit, machine in ((1, 0), (1, 1), (4, 0), (4, 1), (2, 0)):
        shard.contribute(1, unit, machine)
    assert shard.command(1, long) == [MissingUnits(1, ((0, 1), (2, 4), (5, 6)))]
    assert shard.done == []


def test_a_newer_command_drops_an_evaluation() -> None:
    shard = Shard()
    shard.command(1, HALF, dot("g", "g"))
    shard.contribute(1, 0)
    assert shard.command(2, Restore(7), scale("x", 2.0)) == [CommandResult(2, ())]
    assert shard.done == [LoadCheckpoint(7), scale("x", 2.0)], "the rest of the one before is never done"
    assert shard.kept == {}
    shard.command(3, HALF)
    assert shard.contribute(1, 1) == [ContributionAck(1, 1)]
    assert shard.kept == {}, "what was computed for the one before does not count"
    assert shard.command(2) == []


def test_a_point_is_given_until_the_next_command_and_orders_stand_until_the_next_evaluation() -> None:
    shard = Shard()
    shard.receive("part 0.1", FetchPoint(-1))
    shard.command(1, zero("x"))
    assert shard.sent == [("coordinator", CommandResult(1, ()))]
    shard.command(2, HALF)
    assert shard.sent == [("part 0.1", Point(2))]
    for _ in range(2):
        shard.sent.clear()
        shard.receive("part 1.1", FetchPoint(0))
        assert shard.sent == [("part 1.1", Point(2))], "one that was lost is given again"
    shard.sent.clear()
    shard.receive("part 0.1", FetchPoint(2))
    shard.receive("part 0.1", FetchPoint(2))
    assert shard.sent == []
    for machine in (0, 1):
        for unit in range(3):
            shard.contribute(2, unit, machine)
    shard.sent.clear()
    shard.feed(Received("part 0.0", 1, FetchPoint(0)))
    assert shard.sent == [("part 0.0", Point(2))], "it may have to compute for another shard, or the losses"
    shard.command(3, scale("x", 2.0))
    shard.sent.clear()
    shard.feed(Received("part 0.0", 1, FetchPoint(0)))
    assert shard.sent == [], "x has changed"
    shard.command(4, HALF)
    assert sorted(shard.sent) == [("part 0.0", Point(4)), ("part 0.1", Point(4))]


def test_an_order_is_of_the_newest_process_of_a_part() -> None:
    shard = Shard()
    shard.feed(Received("part 0.0", 2, FetchPoint(-1)))
    shard.feed(Received("part 0.0", 1, FetchPoint(9)))
    shard.command(5, HALF)
    assert shard.sent == [("part 0.0", Point(5))]
    shard.sent.clear()
    shard.feed(Received("part 0.0", 1, FetchPoint(-1)))
    assert shard.sent == []
    shard.feed(Received("part 0.0", 3, FetchPoint(-1)))
    assert shard.sent == [("part 0.0", Point(5))]


def test_an_order_that_was_overtaken_does_not_bring_back_an_older_one() -> None:
    shard = Shard()
    shard.receive("part 0.0", FetchPoint(4))
    shard.receive("part 0.0", FetchPoint(2))
    shard.command(4, HALF)
    assert shard.sent == []
    shard.command(5, HALF)
    assert shard.sent == [("part 0.0", Point(5))]


def test_what_a_part_cannot_mean_is_refused_and_changes_nothing() -> None:
    shard = Shard()
    shard.command(1, HALF)
    assert shard.contribute(1, 0, 1, n_bytes=12) == []
    assert shard.contribute(0, 0, 1, n_bytes=-1) == []
    assert shard.contribute(1, 3) == []
    assert shard.contribute(1, -1) == []
    shard.receive("part 0.2", Contribution(1, 0), Text("0", 12))
    shard.receive("part 0.2", FetchPoint(0))
    shard.receive("part 0.0", Fetch(0))
    shard.receive("part 0.0", Save(1))
    assert shard.refused == [
        "a contribution of 'part 0.1' to shard 0 has 20 bytes, not 12",
        "a contribution of 'part 0.1' to shard 0 has 20 bytes, not -1",
        "evaluation 1 has work units 0 to 2; 'part 0.0' contributes to 3",
        "evaluation 1 has work units 0 to 2; 'part 0.0' contributes to -1",
        "shard 0 holds no parameters of 'part 0.2'",
        "shard 0 holds no parameters of 'part 0.2'",
        "shard 0 does not take a Fetch from it",
        "shard 0 does not take a Save from it",
    ]
    assert (shard.sent, shard.kept) == ([], {})
    assert shard.command(1, HALF) == [MissingUnits(1, ((0, 3),))]


def test_nothing_is_done_or_sent_without_a_lease() -> None:
    shard = Shard(leased=False)
    shard.receive("part 0.0", FetchPoint(-1))
    assert shard.command(1, HALF) == []
    shard.receive("coordinator", Heartbeat(0, clock=0.0))
    assert shard.sent == [("part 0.0", Point(1))], "both waited for the lease"
    shard.sent.clear()
    for message, payload in ((Contribution(1, 0), Text("0", 12)), (FetchPoint(0), None)):
        shard.receive("part 0.0", message, payload, now=3.0)  # the lease ends here
    assert shard.command(1, HALF, now=3.0) == shard.command(2, zero("x"), now=3.0) == []
    assert (shard.sent, shard.kept, shard.done) == ([], {}, [])
    shard.receive("coordinator", Heartbeat(0, clock=2.0), now=3.5)
    assert shard.sent[:2] == [("part 0.0", ContributionAck(1, 0)), ("part 0.0", Point(1))]
    assert (shard.done, shard.machine.version) == ([zero("x")], 2), "the last of each kind, in order"


def test_a_shard_that_was_replaced_does_nothing_more() -> None:
    shard = Shard()
    shard.command(1, Snapshot(1))
    effects = shard.machine.receive(Received("coordinator", 0, Heartbeat(1)), 0.1)
    assert effects == [Fenced(1)]
    assert shard.machine.receive(Persisted(1, 0, "file", "hash"), 0.1) == []
    assert shard.command(2, zero("x"), now=0.1) == []
    assert shard.machine.receive(Tick(), 1.0) == []


def test_a_busy_shard_receives_messages_and_starts_no_operation() -> None:
    shard = Shard(slow=True)
    shard.receive("part 0.1", FetchPoint(0))
    assert shard.command(1, Restore(7), zero("x"), HALF, dot("g", "x")) == []
    assert shard.command(1) == [MissingUnits(1, ())], "it is at work, and answers when that is done"
    assert shard.contribute(1, 0) == [ContributionAck(1, 0)]
    shard.receive("part 0.0", FetchPoint(0))
    shard.feed(Tick(), 0.5)
    shard.receive("coordinator", Heartbeat(0, clock=1.0), now=1.0)
    assert shard.sent == [("part 0.0", ContributionAck(1, 0))], "of the last message before these"
    assert (shard.kept, shard.done) == ({}, [])
    shard.work(3.5)
    shard.sent.clear()
    shard.work(3.5)
    assert sorted(shard.sent) == [("part 0.0", Point(1)), ("part 0.1", Point(1))]
    for machine in (0, 1):
        for unit in range(3):
            shard.contribute(1, unit, machine)
    shard.sent.clear()
    shard.receive("part 1.0", FetchPoint(0))
    assert shard.sent == [("part 1.0", Point(1))], "what is done after an evaluation leaves x alone"
    shard.sent.clear()
    shard.feed(Tick(), 3.5)
    shard.work(3.5)
    assert shard.sent == [
        ("part 0.1", ContributionAck(1, 2)),  # behind the answer if that comes soon, and else without it
        ("coordinator", CommandResult(1, (3.5,))),
    ]
    assert shard.done == [LoadCheckpoint(7), zero("x"), dot("g", "x")]


def test_the_newest_command_that_comes_meanwhile_replaces_the_rest() -> None:
    shard = Shard(slow=True)
    shard.command(1, zero("a"), Snapshot(1), HALF, zero("x"))
    for number in (2, 4, 3, 1):
        assert shard.command(number, Restore(number), dot("x", "x")) == [MissingUnits(number, ())]
    shard.sent.clear()
    assert (shard.machine.version, shard.done) == (1, [])
    shard.work()
    assert (shard.policy.number, shard.done) == (4, [zero("a")])
    shard.work()
    shard.work()
    assert shard.done == [zero("a"), LoadCheckpoint(4), dot("x", "x")]
    assert shard.sent == [("coordinator", CommandResult(4, (3.5,)))]


def test_without_a_lease_what_was_done_is_kept_and_the_rest_waits_until_it_is_asked_for_again() -> None:
    shard = Shard(slow=True)
    request = (Largest("x"), HALF, dot("g", "x"))
    shard.receive("part 0.0", FetchPoint(0))
    shard.command(1, *request)
    shard.command(2, Restore(None))
    shard.sent.clear()
    shard.work(3.0)  # the lease has ended
    assert (shard.sent, shard.done) == ([], [Largest("x")])
    shard.receive("coordinator", Heartbeat(0, clock=3.0), now=3.5)
    assert shard.sent == []
    shard.command(1, *request, now=3.5)
    assert shard.sent == [("part 0.0", Point(1))]
    assert shard.command(1, *request, now=3.5) == [MissingUnits(1, ((0, 3),))]
    shard.sent.clear()
    assert shard.command(2, Restore(None), now=3.5) == []
    shard.work(9.0)
    assert shard.command(2, Restore(None), now=9.0) == []
    shard.receive("coordinator", Heartbeat(0, clock=9.0), now=9.0)
    assert shard.sent == [("coordinator", CommandResult(2, ()))], "the repeat waited for the lease"
    assert shard.done == [Largest("x"), LoadCheckpoint(None)]


def test_one_that_was_replaced_while_at_work_sends_nothing() -> None:
    shard = Shard(slow=True)
    shard.command(1, dot("x", "x"))
    shard.receive("coordinator", Heartbeat(1))
    shard.sent.clear()
    shard.work()
    assert shard.command(1) == shard.sent == []


def test_a_snapshot_stands_between_operations_and_its_file_is_reported_when_it_is_there() -> None:
    shard = Shard()
    request = (zero("a"), Snapshot(3), scale("x", 2.0), dot("x", "x"))
    assert shard.command(8, *request) == [CommandResult(8, (4.5,))]
    assert shard.done == [zero("a"), Persist(3, 0, 0, seen={"coordinator": (0, 7)}), *request[2:]]
    shard.command(8, *request)
    assert len(shard.done) == 4
    shard.command(9, Snapshot(4))  # while the other is being written
    shard.sent.clear()
    shard.receive("coordinator", Save(3))
    assert shard.sent == []
    shard.feed(Persisted(3, 0, "three", "hash"))
    for _ in range(2):
        shard.receive("coordinator", Save(3))
    assert shard.sent == [("coordinator", Saved(3, 0, 0, "three", "hash"))] * 3
    shard.sent.clear()
    shard.feed(Persisted(4, 1, "four", "hash"))
    shard.receive("coordinator", Save(3))
    shard.receive("coordinator", Save(5))
    assert shard.sent == [("coordinator", Saved(4, 0, 1, "four", "hash"))]
    with pytest.raises(AssertionError, match="while writing None"):
        shard.machine.receive(Persisted(4, 1, "four", "hash"), 0.0)


def test_one_that_comes_back_does_only_what_is_newer_than_its_checkpoint() -> None:
    shard = Shard(number=6)
    assert shard.command(5, zero("x")) == shard.command(6, zero("x")) == []
    assert shard.command(7, zero("x")) == [CommandResult(7, ())]


def test_vectors_to_which_nobody_contributes_are_zeros() -> None:
    shard = Shard()
    empty = Evaluate((Segment("a", 0, 0), Segment("b", 4, 1), Segment("c", 5, 0)))
    shard.command(1, empty)
    shard.contribute(1, 0, 0)
    assert shard.contribute(1, 0, 1) == [CommandResult(1, ()), ContributionAck(1, 0)]
    assert shard.vectors == {(name, m): "0" for name in "abc" for m in (0, 1)}
    assert sorted(map(str, shard.done)) == sorted(map(str, (zero("a"), zero("c"))))
    nobodys = Shard(ranges={})
    assert nobodys.command(1, HALF, Largest("g")) == [CommandResult(1, (2.5,))]
    assert nobodys.done == [zero("g"), Largest("g")]


def test_little_is_kept_while_one_work_unit_is_missing() -> None:
    shard = Shard(ranges={0: RANGES[0]})
    shard.command(1, Evaluate((Segment("g", 0, 2 * 500),)))
    for unit in range(1, 500):
        shard.contribute(1, unit)
    assert shard.most_kept <= 2 * 9, "a few for each level of the tree"
    shard.contribute(1, 0)
    assert ("g", 0) in shard.vectors
