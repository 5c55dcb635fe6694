"""A shard and its backup: nothing acknowledged is missing, whatever the network does and whoever dies."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.protocol.durability import fill
from tests.draws import examples
from tests.protocol.durability.replicas import BACKUP, PARTS, SHARD, World

_STEPS = 120
_KINDS = {"push": 4, "deliver": 12, "first": 3, "lose": 1, "repeat": 1, "tick": 2, "kill": 2}


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill, "CHUNK", 2)


def play(seed: int, *, one_at_a_time: bool) -> World:
    """Plays a random history. `one_at_a_time`: nobody dies while the other copy is not whole."""
    draw, world = Random(seed), World()
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
            case "tick":
                world.tick()
            case "kill" if world.both_whole or (not one_at_a_time and draw.random() < 0.5):
                world.kill(draw.choice((SHARD, BACKUP)))
    world.settle()
    world.check()
    return world


@given(st.integers(0, 1 << 32))
@settings(max_examples=examples(100))
def test_nothing_acknowledged_is_missing_with_one_failure_at_a_time(seed: int) -> None:
    assert play(seed, one_at_a_time=True).begun_anew == 0


@given(st.integers(0, 1 << 32))
@settings(max_examples=examples(60))
def test_both_copies_may_die_and_nothing_is_applied_twice(seed: int) -> None:
    play(seed, one_at_a_time=False)
