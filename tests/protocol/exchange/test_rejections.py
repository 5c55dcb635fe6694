"""Messages of old views, of old or far numbers, and of those that are not concerned: none has an effect."""

from __future__ import annotations

import random
from typing import Any

import pytest

from partita.engine.protocol.events import Received, Refuse, Span, Tick
from partita.engine.protocol.exchange import (
    AddChunk,
    Exchange,
    ExchangeDone,
    Group,
    Member,
    Numbers,
    Ring,
    Tree,
    create_exchange,
)
from partita.engine.protocol.messages import Credit, Heartbeat
from partita.engine.protocol.permissions import rejection_reason
from partita.engine.protocol.replica_messages import ChunkRequest, ExchangeAck, FinalChunk, PartialChunk
from tests.protocol.exchange.network import Network

MEMBERS = tuple(Member(f"part {rank}.0", incarnation=3) for rank in range(3))
VECTOR = Span("gradient", 0, 6)
PAYLOAD = bytes(8)


def ring(rank: int = 0, *, begun: bool = True) -> Exchange:
    """The ring of view 2 and exchange 1 over six numbers, whose next use is number 4, or under way.

    Rank 0 adds sums of pieces 0 and 1, and gets the results of pieces 1 and 2, all from rank 2.
    """
    group = Group(MEMBERS, MEMBERS[rank].name, view=2, exchange=1)
    machine = create_exchange(Ring(), group, Numbers(6), first=4)
    if begun:
        machine.begin(4, VECTOR, 0.0)
    return machine


def give(
    machine: Exchange, message: Any, *, sender: str = "part 2.0", incarnation: int = 3, payload: Any = PAYLOAD
) -> list[Any]:
    effects = machine.receive(Received(sender, incarnation, message, payload), 0.0)
    machine.validate()
    return effects


@pytest.mark.parametrize(
    "message",
    [
        PartialChunk(1, 1, 4, 0),
        FinalChunk(1, 1, 4, 1),
        PartialChunk(3, 1, 4, 0),
        PartialChunk(2, 0, 4, 0),
        PartialChunk(2, 1, 3, 0),
        FinalChunk(2, 1, 3, 1),
        PartialChunk(2, 1, 6, 0),
    ],
    ids=["old view", "result of it", "later view", "other exchange", "old number", "result", "far number"],
)
def test_messages_of_another_time_are_counted_and_nothing_else(message: Any) -> None:
    machine = ring()
    assert give(machine, message) == []
    assert machine.stale == 1
    assert next(type(effect) for effect in give(machine, PartialChunk(2, 1, 4, 0))) is AddChunk


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sender": "part 9.0"}, "it is no member of this exchange"),
        ({"incarnation": 2}, "incarnation 3 of it is a member of this exchange, not 2"),
        ({"sender": "part 1.0"}, "a PartialChunk of piece 0, which another member sends"),
        ({"payload": bytes(4)}, "piece 0 has 8 bytes, not 4"),
        ({"payload": None}, "piece 0 has 8 bytes, not -1"),
        ({"message": PartialChunk(2, 1, 4, 2)}, "a PartialChunk of piece 2, which another member sends"),
        ({"message": FinalChunk(2, 1, 4, 0)}, "a FinalChunk of piece 0, which another member sends"),
        ({"message": PartialChunk(2, 1, 4, 3)}, "piece 3 of an exchange of 3"),
        ({"message": FinalChunk(2, 1, 4, 1)}, "the result of piece 1 before this member's sum of it"),
        ({"message": ExchangeAck(2, 1, 4)}, "an acknowledgement that nobody waits for"),
        ({"message": Credit(4)}, "an exchange does not take a Credit"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_messages_out_of_place_are_refused(change: dict[str, Any], reason: str) -> None:
    for begun in (True, False):
        machine = ring(begun=begun)
        arguments = {"message": PartialChunk(2, 1, 4, 0)} | change
        if not begun and "before" in reason:
            continue  # it is kept, and refused when the use begins
        sender = arguments.get("sender", "part 2.0")
        assert give(machine, **arguments) == [Refuse(sender, reason)]


def test_a_result_that_cannot_be_is_refused_when_the_use_begins() -> None:
    machine = ring(begun=False)
    assert give(machine, FinalChunk(2, 1, 4, 1)) == []
    reason = "the result of piece 1 before this member's sum of it"
    assert Refuse("part 2.0", reason) in machine.begin(4, VECTOR, 0.0)


def test_messages_of_the_next_use_are_kept_once_each() -> None:
    machine = ring(begun=False)
    for _ in range(100):
        assert give(machine, PartialChunk(2, 1, 4, 0), payload=bytes(8)) == []
    added = [effect for effect in machine.begin(4, VECTOR, 0.0) if isinstance(effect, AddChunk)]
    assert [effect.span for effect in added] == [Span("gradient", 0, 2)]


def test_a_repeated_contribution_counts_once() -> None:
    machine = ring()
    assert any(isinstance(effect, AddChunk) for effect in give(machine, PartialChunk(2, 1, 4, 0)))
    assert give(machine, PartialChunk(2, 1, 4, 0)) == []
    assert machine.stale == 1


def test_a_request_gets_what_is_there_and_only_its_neighbour_does() -> None:
    machine = ring()
    everything = ChunkRequest(2, 1, 4, ((0, 99),), ((0, 99),))
    (again,) = give(machine, everything, sender="part 1.0", payload=None)
    assert (again.to, again.message, again.payload) == (
        "part 1.0",
        PartialChunk(2, 1, 4, 2),
        Span("gradient", 4, 6),
    )
    assert give(machine, everything, sender="part 2.0", payload=None) == []
    assert give(machine, ChunkRequest(2, 1, 3, ((0, 3),), ()), sender="part 1.0", payload=None) == []
    assert machine.repeats == 1


def test_what_is_missing_is_asked_for_less_and_less_often() -> None:
    machine = ring()
    asked = [t / 10 for t in range(1, 400) if machine.receive(Tick(), t / 10)]
    assert asked == pytest.approx([1.0, 3.0, 7.0, 15.0, 31.0])
    assert machine.waits_for == ("part 2.0",)


def test_a_use_is_begun_after_the_one_before() -> None:
    with pytest.raises(AssertionError):
        ring().begin(5, VECTOR, 0.0)
    with pytest.raises(AssertionError):
        ring(begun=False).begin(3, VECTOR, 0.0)


def test_alone_a_member_is_done_at_once() -> None:
    group = Group(MEMBERS[:1], MEMBERS[0].name)
    for phase in ("all-reduce", "reduce-scatter", "all-gather"):
        for algorithm in (Ring(), Tree()):
            machine = create_exchange(algorithm, group, Numbers(6000, 4, 4), mean=True, phase=phase)
            assert machine.begin(0, Span("gradient", 0, 6000), 0.0) == [ExchangeDone(0, 0)]


def test_a_leaf_sends_few_pieces_ahead() -> None:
    """A parent holds no more of each child than the window, however long the vector is."""
    network = Network(Tree(), ["", ""], Numbers(1000, 4, 4), random.Random(0))
    network.begin(1)
    assert len(network.flights) == 8
    network.heal(lambda: network.all_have(0))


@pytest.mark.parametrize(
    "message",
    [
        PartialChunk(0, 0, 0, 0),
        FinalChunk(0, 0, 0, 0),
        ChunkRequest(0, 0, 0, (), ()),
        ExchangeAck(0, 0, 0),
    ],
    ids=lambda message: type(message).__name__,
)
def test_parts_of_all_replicas_may_send_what_exchanges_need(message: Any) -> None:
    for sender in ("part 0.1", "part 7.1", "part 7.0"):
        assert rejection_reason(message, sender=sender, receiver="part 0.0") is None
    for sender in ("shard 0", "coordinator"):
        assert rejection_reason(message, sender=sender, receiver="part 0.0") is not None
    for receiver in ("shard 0", "coordinator"):
        assert rejection_reason(message, sender="part 0.0", receiver=receiver) is not None


def test_nothing_else_crosses_replicas() -> None:
    for message in (Credit(0), Heartbeat(0)):
        assert rejection_reason(message, sender="part 1.0", receiver="part 0.0") is not None
