"""Checks of schedules for the tests of both simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from partita.engine.runtime.simulation import Outcome


class Reported(Protocol):
    """A planted fault: the invariants whose breach may be reported."""

    @property
    def reported(self) -> str:
        """Their numbers."""


def report_of(outcome: Outcome) -> str:
    """The violation of a schedule, and its trace."""
    return f"seed {outcome.seed} breaks {outcome.violation}\n" + "\n".join(outcome.trace)


def all_hold(play: Callable[[int], Outcome], seeds: Iterable[int]) -> None:
    """Every invariant holds in every schedule; else the trace of the first violation is shown."""
    for seed in seeds:
        outcome = play(seed)
        assert outcome.violation is None, report_of(outcome)


def is_caught(planted: Reported, play: Callable[[int], Outcome], seeds: Iterable[int]) -> None:
    """The fault is found within these seeds, and what is reported is what it breaks."""
    caught = next((outcome for outcome in map(play, seeds) if outcome.violation), None)
    assert caught is not None, "not found within these seeds"
    assert caught.violation is not None
    assert caught.violation.split(":")[0] in planted.reported.split(), caught.violation
    assert caught.trace, "a failure shows its last events"
