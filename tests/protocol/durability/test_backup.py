"""A shard and its backup: nothing acknowledged is missing, whatever the network does and whoever dies."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.protocol import messages as m
from partita.engine.protocol.durability import Record, fill
from partita.engine.protocol.durability.chain import TRUSTED_S, Chain
from partita.engine.protocol.events import Received
from tests.draws import examples
from tests.protocol.durability.replicas import BACKUP, PARTS, SHARD, World

_STEPS = 120
_KINDS = {"push": 4, "deliver": 12, "first": 3, "lose": 1, "repeat": 1, "tick": 2, "kill": 2, "link": 3}


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill, "CHUNK", 2)


def play(seed: int, *, one_at_a_time: bool, links: bool) -> World:
    """Plays a random history. `one_at_a_time`: nobody dies while the other copy is not whole."""
    draw, world = Random(seed), World(links=links)
    kinds, weights = list(_KINDS), list(_KINDS.values())
    for kind in draw.choices(kinds, weights, k=_STEPS):
        match kind:
            case "push":
                world.push(draw.choice(PARTS))
            case "deliver":
                world.deliver(draw.randrange(8))
            case "first":
                for _ in range(3):
                    world.deliver(0)
            case "lose":
                world.lose(draw.randrange(8))
            case "repeat":
                world.repeat(draw.randrange(8))
            case "link":
                world.read_link(draw.randrange(4))
            case "tick":
                world.tick()
            case "kill" if world.both_whole or (not one_at_a_time and draw.random() < 0.5):
                world.kill(draw.choice((SHARD, BACKUP)))
    world.settle()
    world.check()
    return world


@given(st.integers(0, 1 << 32), st.booleans())
@settings(max_examples=examples(100))
def test_nothing_acknowledged_is_missing_with_one_failure_at_a_time(seed: int, links: bool) -> None:
    assert play(seed, one_at_a_time=True, links=links).begun_anew == 0


@given(st.integers(0, 1 << 32), st.booleans())
@settings(max_examples=examples(60))
def test_both_copies_may_die_and_nothing_is_applied_twice(seed: int, links: bool) -> None:
    play(seed, one_at_a_time=False, links=links)


def followed() -> World:
    world = World(links=True)
    world.settle()
    assert world.both_whole and not world.network
    return world


def test_what_lies_in_shared_memory_is_acknowledged_before_the_backup_has_looked() -> None:
    world = followed()
    for name in (*PARTS, *PARTS):
        world.push(name)
        world.deliver(0)  # to the shard
        world.deliver(0)  # its acknowledgement
    assert all(part.acknowledged == 2 for part in world.parts.values())
    asked = [one.message.asks for one in world.linked if isinstance(one.message, m.RecordCopy)]
    assert asked == [True, False, False, False, False, False]
    world.kill(SHARD)
    world.settle()
    world.check()
    assert world.begun_anew == 0


def test_a_backup_that_confirms_nothing_is_not_trusted_for_long() -> None:
    world = followed()
    for n in range(5):
        world.push(PARTS[0])
        world.deliver(0)
        world.now += TRUSTED_S / 3
        world.lease()
        if world.network:
            world.deliver(0)
        assert world.parts[PARTS[0]].is_acknowledged == (n < 4), n
    world.settle()
    world.check()


def test_a_record_behind_a_lost_one_is_not_kept_although_it_was_delivered() -> None:
    chain = Chain(BACKUP)
    chain.backup_is(0)
    assert chain.begin(0, 7)
    request = Received(PARTS[0], 0, m.Push(0, 0, 0, 0, 1))
    for number in (8, 9, 10):
        chain.send(Record(number, request), 0.0)
    assert [chain.deliver(number, 0.0) for number in (8, 10)] == [8, 8]
    chain.validate()
    assert [one.message.number for one in chain.tick(2.0)] == [9, 10]
    assert chain.take(10, 2.0) == 10
