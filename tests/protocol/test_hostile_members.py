"""A member may send any message that it is permitted: it is refused or has an effect, and raises nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias, get_args

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import inspect

from partita.engine import Sandblaster
from partita.engine.protocol import (
    InstructionScheduler,
    MalformedMessage,
    Message,
    Part,
    PointLinks,
    Shard,
    ShardRanges,
    SumThenContinue,
    decode,
    encode,
)
from partita.engine.protocol.assigned_work import AssignedWork
from partita.engine.protocol.batch_messages import (
    Assignment,
    AssignmentResult,
    Command,
    CommandResult,
    MissingUnits,
    Point,
)
from partita.engine.protocol.checkpoint_messages import Saved
from partita.engine.protocol.commands import Evaluate, Segment, dot
from partita.engine.protocol.coordinator_effects import Warn
from partita.engine.protocol.events import Received, Refuse, Send, Tick
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.instruction_scheduler import BeginStep, Kind, ScheduledInstruction
from partita.engine.protocol.messages import Failed, Finished, Heartbeat, Malformed, Report
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.permissions import PERMISSIONS, host_kind, rejection_reason
from tests.protocol import directing
from tests.protocol.coordinating import Run, of
from tests.protocol.machines import RANGES, SHARDS, assign, feed, linked, receive, shard

integers = st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 5, 7, 10, 1000, 2**31, 2**53, 2**53 + 1, 2**64 - 1])
floats = st.sampled_from([-1.0, 0.0, 0.5, 3.0, 1e308, math.inf, -math.inf, math.nan])
texts = st.sampled_from(["", "x", "b", "part 0.0", "part 9.9", "shard 0", "../../etc", "\x1b[2J", "a" * 3000])


Said: TypeAlias = Message | Malformed


def values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Anything of a field's type, numbers without regard to their bounds."""
    match kind:
        case inspect.IntType():
            return integers
        case inspect.FloatType():
            return floats
        case inspect.LiteralType():
            return st.sampled_from([*kind.values, "another"])
        case inspect.StrType():
            return texts
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.DictType():
            return st.dictionaries(values(kind.key_type), values(kind.value_type), max_size=2)
        case inspect.VarTupleType():
            return st.lists(values(kind.item_type), max_size=3).map(tuple)
        case inspect.TupleType():
            return st.tuples(*map(values, kind.item_types))
        case inspect.UnionType():
            return st.one_of(*map(values, kind.types))
        case inspect.StructType():
            return structs(kind.cls)
    raise AssertionError(kind)


def structs(kind: type) -> st.SearchStrategy[Any]:
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return st.builds(kind, **{field.name: values(field.type) for field in found.fields})


def arrived(message: Message) -> Said:
    """Encodes and decodes a message: the decoder is the first to refuse numbers."""
    try:
        return decode(encode(message))
    except (MalformedMessage, msgspec.MsgspecError, OverflowError, ValueError) as error:
        return Malformed(str(error))


def said_by(
    sender: str, receiver: str, *, without: tuple[type, ...] = ()
) -> st.SearchStrategy[Message | Malformed]:
    kinds = sorted(
        PERMISSIONS[host_kind(sender), host_kind(receiver)] - set(without), key=lambda kind: kind.__name__
    )
    return st.sampled_from(kinds).flatmap(structs).map(arrived)


def to_coordinator(*senders: str) -> st.SearchStrategy[list[tuple[str, Said]]]:
    each = [st.tuples(st.just(s), said_by(s, COORDINATOR, without=(Failed,))) for s in senders]
    return st.lists(st.one_of(*each), max_size=15)


def test_every_number_of_every_message_has_bounds() -> None:
    whole = [
        (kind.__name__, field.name, field.type)
        for kind in get_args(Message)
        for field in inspect.type_info(kind).fields  # type: ignore[union-attr]
        if isinstance(field.type, inspect.IntType)
    ]
    for *names, bounds in whole:
        assert bounds.ge is not None and bounds.ge >= 0, names
        assert bounds.le == 2**53 or (bounds.lt is not None and bounds.lt <= 2**53), names
    assert len(whole) > 20


@given(to_coordinator("part 0.0", "part 1.1", "shard 0"))
def test_a_downpour_coordinator(sent: list[tuple[str, Said]]) -> None:
    run = Run().start()
    for sender, message in sent:
        incarnation = run.incarnations[sender]
        if rejection_reason(message, sender=sender, receiver=COORDINATOR, incarnation=incarnation) is None:
            run.feed(Received(sender, incarnation, message))
        run.now += 0.3
        run.feed(Tick())


@given(to_coordinator("part 0.0", "part 1.0", "shard 0", "shard 1"))
def test_a_sandblaster_coordinator(sent: list[tuple[str, Said]]) -> None:
    stage = in_an_evaluation()
    for sender, message in sent:
        incarnation = stage.incarnations[sender]
        if rejection_reason(message, sender=sender, receiver=COORDINATOR, incarnation=incarnation) is None:
            stage.feed(Received(sender, incarnation, message), wait_s=0.3)
        stage.feed(Tick())


def in_an_evaluation() -> directing.Stage:
    """A run whose first evaluation is not computed yet."""
    stage = directing.staged()
    stage.deliver = lambda to, message: not isinstance(message, Command | Assignment)
    stage.play()
    return stage


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        ("part 0.0", AssignmentResult(0, 1, 99, 0.0, 0)),
        ("part 0.0", AssignmentResult(5, 1, 0, 0.0, 0)),
        ("shard 0", MissingUnits(1, ((0, 99),))),
        ("shard 0", MissingUnits(1, ((3, 1),))),
        ("shard 0", CommandResult(1, (1.0, 2.0, 3.0))),
        ("shard 0", Saved(1, 0, 0, "../there", "")),
    ],
)
def test_numbers_that_a_sandblaster_coordinator_knows_better_are_refused(
    sender: str, message: Message
) -> None:
    stage = in_an_evaluation()
    stage.feed(Received(sender, 0, message))
    (refused,) = [effect for effect in stage.effects if isinstance(effect, Refuse)]
    assert refused.sender == sender


def test_who_has_finished_under_a_directory_of_the_future_has_not() -> None:
    run = Run().start()
    for name in ("part 0.0", "part 0.1", "part 1.0", "part 1.1"):
        run.receive(name, Report(10, 1, 0.0, 0, 0.0, 0))
        run.receive(name, Finished(10, 2**50))
    run.machine.validate()
    newest = run.machine.directories.revision
    assert max(host.finished for host in run.machine.registry.hosts.values()) <= newest


def test_a_report_of_another_host_is_cut() -> None:
    run = Run().start()
    (warned,) = of(Warn, run.receive("part 0.0", Failed("\x1b" + "x" * 500_000, "y\n" * 200_000)))[:1]
    assert len(warned.text) < 5000 and "\x1b" not in warned.text


payloads = st.none() | st.sampled_from([b"", bytes(8), bytes(12), bytes(20)])
parts = st.sampled_from(["part 0.0", "part 3.1", "part 0.7"])
to_shard = st.lists(st.tuples(parts, said_by("part 0.0", "shard 0"), payloads))


def permitted(sent: list[tuple[str, Said, object]]) -> list[tuple[str, Said, object]]:
    """The messages that a shard accepts from their senders; at least one, or the example is dropped."""
    found = [
        one
        for one in sent
        if rejection_reason(one[1], sender=one[0], receiver="shard 0", incarnation=0) is None
    ]
    assume(found)
    return found


@given(to_shard)
def test_a_shard(sent: list[tuple[str, Said, object]]) -> None:
    machine = shard()
    for sender, message, payload in permitted(sent):
        for effect in machine.receive(Received(sender, 0, message, payload), 0.1):
            assert not isinstance(effect, Send) or encode(effect.message)
        machine.validate()


@given(to_shard)
def test_a_shard_of_vectors(sent: list[tuple[str, Said, object]]) -> None:
    own = ShardRanges("shard 0", 0, RANGES)
    machine = Shard(own, SumThenContinue(own, unit_size=2))
    machine.receive(Received(COORDINATOR, 0, Heartbeat(0, clock=0.0)), 0.0)
    request = (Evaluate((Segment("g", 0, 7),)), dot("g", "g"))
    machine.receive(Received(COORDINATOR, 0, Command(1, request)), 0.0)
    for sender, message, payload in permitted(sent):
        for effect in machine.receive(Received(sender, 0, message, payload), 0.1):
            assert not isinstance(effect, Send) or encode(effect.message)
        machine.validate()


def to_part(sender: str) -> st.SearchStrategy[list[tuple[Said, object]]]:
    return st.lists(st.tuples(said_by(sender, "part 0.0"), payloads), max_size=15)


def play(sent: list[tuple[Said, object]], sender: str, take: Callable[[Received], object]) -> None:
    for message, payload in sent:
        if rejection_reason(message, sender=sender, receiver="part 0.0", incarnation=0) is None:
            take(Received(sender, 0, message, payload))


@given(to_part("part 0.1"))
def test_a_part(sent: list[tuple[Said, object]]) -> None:
    machine = InstructionScheduler(
        [
            ScheduledInstruction(Kind.COMPUTE),
            ScheduledInstruction(Kind.SEND, (0,), "part 0.1", "y", (((0, 2),),)),
            ScheduledInstruction(Kind.RECEIVE, (), "part 0.2", "x", (((0, 2),),), n_bytes=8),
        ]
    )
    machine.receive(BeginStep(0), 0.0)

    play(sent, "part 0.1", lambda event: feed(machine, event, now=0.1))
    assert machine.waits_for == (("part 0.2", "x"),)


@given(to_part("shard 0"))
def test_a_part_under_downpour(sent: list[tuple[Said, object]]) -> None:
    links = linked()
    play(sent, "shard 0", lambda event: feed(links, event))


@given(to_part("shard 0"))
def test_a_part_under_sandblaster(sent: list[tuple[Said, object]]) -> None:
    client = Part(Sandblaster().replica, AssignedWork(PointLinks(streams=SHARDS), alone=False))
    feed(client, PeersChanged(1, {}))
    assign(client, 0, 1)
    play(sent, "shard 0", lambda event: feed(client, event))
    receive(client, "shard 2", Point(1), bytes(12))
