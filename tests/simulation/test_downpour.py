"""Downpour in the simulator: the real machines hold every invariant, planted faults do not."""

from __future__ import annotations

import pytest

from partita.engine.runtime.simulation import Outcome
from partita.engine.runtime.simulation.downpour import play
from tests.simulation.planted_downpour import FAULTS, Planted

SCHEDULES = 2000


def told(outcome: Outcome) -> str:
    return f"seed {outcome.seed} breaks {outcome.violation}\n" + "\n".join(outcome.story)


@pytest.mark.parametrize("first", range(0, SCHEDULES, SCHEDULES // 4))
def test_every_invariant_holds_in_every_schedule(first: int) -> None:
    for seed in range(first, first + SCHEDULES // 4):
        outcome = play(seed)
        assert outcome.violation is None, told(outcome)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_invariant_holds_in_very_many_schedules() -> None:
    for seed in range(SCHEDULES, SCHEDULES + 20_000):
        outcome = play(seed)
        assert outcome.violation is None, told(outcome)


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.machine.__name__)
def test_it_bites(planted: Planted) -> None:
    outcomes = (play(seed, planted.machines) for seed in range(planted.seeds))
    caught = next((outcome for outcome in outcomes if outcome.violation), None)
    assert caught is not None, f"not found within {planted.seeds} seeds"
    assert caught.violation is not None
    assert caught.violation.split(":")[0] in planted.reported.split(), caught.violation
    assert caught.story, "a failure tells its last events"


def test_schedules_are_of_all_kinds() -> None:
    """Nothing is checked by schedules in which nothing happens."""
    stories = ["\n".join(play(seed, keep_all=True).story) for seed in range(150)]
    for event in (
        "crashes",
        "freezes for",
        "Commit",
        "Lost(",
        "Failed(",
        "Restart(",
        "StopRequested",
    ):
        assert sum(event in story for story in stories) >= 3, event
