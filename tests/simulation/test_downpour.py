"""Downpour in the simulator: the real machines hold every invariant, planted faults do not."""

from __future__ import annotations

import pytest

from partita.engine.testing.downpour import Machines, play
from tests.simulation.outcomes import Planted, all_hold, is_caught
from tests.simulation.planted_downpour import FAULTS

SCHEDULES = 600


@pytest.mark.parametrize("first", range(0, SCHEDULES, SCHEDULES // 2))
def test_every_invariant_holds_in_every_schedule(first: int) -> None:
    all_hold(play, range(first, first + SCHEDULES // 2))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_invariant_holds_in_very_many_schedules() -> None:
    all_hold(play, range(SCHEDULES, SCHEDULES + 20_000))


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.machine.__name__)
def test_it_bites(planted: Planted) -> None:
    is_caught(planted, lambda seed: play(seed, planted.among(Machines)))


def test_schedules_are_of_all_kinds() -> None:
    """Nothing is checked by schedules in which nothing happens."""
    traces = ["\n".join(play(seed, keep_all=True).trace) for seed in range(150)]
    for event in (
        "crashes",
        "freezes for",
        "Commit",
        "LostPushes(",
        "Failed(",
        "Restart(",
        "StopRequested",
    ):
        assert sum(event in trace for trace in traces) >= 3, event
