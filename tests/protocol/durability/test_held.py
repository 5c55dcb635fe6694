"""A shard with keepers: what it promises waits for them, everything else does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol import ApplyOnArrival, ShardRanges
from partita.engine.protocol.apply_on_arrival import RestoredState
from partita.engine.protocol.checkpoint_messages import Save
from partita.engine.protocol.durability import HeldReplies, Keep, Kept, Record, durability_of
from partita.engine.protocol.events import Received, Send
from partita.engine.protocol.messages import Fetch, Heartbeat, Parameters, Push, PushAck
from partita.engine.protocol.shard_effects import ApplyGradient, ReceiveAgain
from tests.protocol.machines import RANGES, feed, receive, shard

BYTES = {"part 0.0": bytes(12), "part 0.1": bytes(20), "part 1.0": bytes(12)}


def push(machine: Any, part: str, sequence: int, *, incarnation: int = 0, now: float = 0.0) -> list[Any]:
    message = Push(incarnation, sequence, 0, 0, sequence + 1)
    return receive(machine, part, message, BYTES[part], incarnation=incarnation, now=now)


def kinds(effects: list[Any]) -> list[str]:
    return [type(e.message if isinstance(e, Send) else e).__name__ for e in effects]


def test_an_acknowledgement_waits_for_the_record_and_nothing_else_does() -> None:
    machine = shard(keeps=True)
    first = push(machine, "part 0.0", 0)
    assert kinds(first) == ["Keep", "ApplyGradient"]
    assert first[0].record == Record(1, Received("part 0.0", 0, Push(0, 0, 0, 0, 1), BYTES["part 0.0"]))
    assert kinds(push(machine, "part 0.1", 0)) == ["Keep", "ApplyGradient"]
    assert kinds(receive(machine, "part 0.1", Fetch(0))) == ["Parameters"]
    assert kinds(receive(machine, "coordinator", Save(1))) == ["BeginSegment", "Persist"]
    assert push(machine, "part 0.0", 0) == []  # its first answer is held
    assert feed(machine, Kept(1)) == [Send("part 0.0", PushAck(0, 0, 0, 1, 0))]
    assert feed(machine, Kept(1)) == []
    assert kinds(push(machine, "part 0.0", 0)) == []  # the shard's version is not kept yet
    assert feed(machine, Kept(2)) == [
        Send("part 0.1", PushAck(0, 0, 0, 2, 0)),
        Send("part 0.0", PushAck(0, 0, 0, 2, 0)),
    ]
    assert kinds(push(machine, "part 0.0", 0)) == ["PushAck"]


def test_without_keepers_no_record_is_made_and_nothing_waits() -> None:
    assert kinds(push(shard(), "part 0.0", 0)) == ["ApplyGradient", "PushAck"]
    assert feed(shard(), Kept(1)) == []


def test_a_new_process_of_a_part_learns_of_pushes_when_they_are_kept() -> None:
    """The answer makes it leave out their steps, so it is a promise."""
    machine = shard(keeps=True)
    push(machine, "part 0.0", 0)
    push(machine, "part 1.0", 0)
    assert receive(machine, "part 0.0", Fetch(0), incarnation=1) == []
    assert receive(machine, "part 0.0", Fetch(0), incarnation=1) == []
    assert kinds(receive(machine, "part 0.1", Fetch(0), incarnation=1)) == ["Parameters"]  # has none
    ack, again = feed(machine, Kept(1))
    assert isinstance(ack.message, PushAck)
    assert again == ReceiveAgain(Received("part 0.0", 1, Fetch(0)))
    (answer,) = feed(machine, again.event)
    assert isinstance(answer.message, Parameters) and answer.message.earlier is not None
    assert answer.message.earlier.pushes == 1


def test_a_shard_that_was_replaced_acknowledges_nothing_when_its_records_are_kept() -> None:
    machine = shard(keeps=True)
    push(machine, "part 0.0", 0)
    receive(machine, "coordinator", Heartbeat(1))
    assert feed(machine, Kept(1)) == []


def test_what_is_held_is_bounded_by_the_promises() -> None:
    held = HeldReplies(0)
    for number in range(1, 100):
        held.hold([Send("part 0.0", PushAck(0, 0, 7, number, 0))], number)
    assert len(held) == 1
    assert held.release(1) == [Send("part 0.0", PushAck(0, 0, 7, 1, 0))]


@pytest.mark.parametrize("value", ["none", 3, None])
def test_a_mode_that_does_not_exist_is_refused_with_what_to_write(value: object) -> None:
    with pytest.raises(ValueError, match=r"write .*'checkpoint'"):
        durability_of(value)


@given(st.lists(st.tuples(st.sampled_from(sorted(BYTES)), st.booleans()), max_size=40), st.data())
def test_replayed_records_give_the_effects_and_the_counts_of_the_first_time(
    history: list[tuple[str, bool]], data: st.DataObject
) -> None:
    """Any history of pushes and new processes of parts, replayed from any file of it."""
    machine, records, applied, incarnations, sequences = shard(keeps=True), [], [], {}, {}
    files = [machine.policy.persist(1)]
    for part, is_new in history:
        if is_new:
            incarnations[part] = incarnations.get(part, 0) + 1
            sequences[part] = 0
            fetch = Received(part, incarnations[part], Fetch(0))
            feed(machine, Kept(machine.version))
            feed(machine, fetch)
        sequence = sequences.get(part, 0)
        effects = push(machine, part, sequence, incarnation=incarnations.get(part, 0))
        sequences[part] = sequence + 1
        records += [effect.record for effect in effects if isinstance(effect, Keep)]
        applied += [effect for effect in effects if isinstance(effect, ApplyGradient)]
        files.append(machine.policy.persist(1))
    start = data.draw(st.integers(0, len(records)))
    file = files[start]
    restored = RestoredState(file.version, file.updates, file.seen, file.stops, file.updates_of)
    again = ApplyOnArrival(ShardRanges("shard 0", 0, RANGES), restored=restored)
    replayed = [effect for record in records[start:] for effect in again.replay(record)]
    again.validate()
    assert replayed == applied[start:]
    assert again.persist(1) == files[-1]
    assert again.lost == 0
