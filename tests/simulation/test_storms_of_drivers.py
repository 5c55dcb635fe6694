"""Storms over drivers whose settings a seed draws: deaths, slow hosts, cut links, stops and full disks."""

from __future__ import annotations

from random import Random

import pytest

from partita.engine.testing.storms import DRAWS, play_drawn


@pytest.mark.parametrize("kind", DRAWS)
def test_invariants_hold_in_a_storm(kind: str) -> None:
    all_hold(kind, range(6))


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAWS)
def test_invariants_hold_in_many_storms(kind: str) -> None:
    all_hold(kind, range(6, 600))


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAWS)
def test_hostile_members_break_nothing_in_a_storm(kind: str) -> None:
    all_hold(kind, range(100), hostile=True)


def all_hold(kind: str, seeds: range, *, hostile: bool = False) -> None:
    for seed in seeds:
        outcome = play_drawn(kind, seed, hostile=hostile)
        assert outcome.violation is None, (seed, DRAWS[kind](Random(-11 - seed)), outcome)


@pytest.mark.parametrize("kind", DRAWS)
def test_seeds_draw_other_settings(kind: str) -> None:
    drawn = [DRAWS[kind](Random(-11 - seed))[0] for seed in range(40)]
    assert len({repr(driver) for driver in drawn}) > 10
    assert {type(driver) for driver in drawn} == {type(drawn[0])}
