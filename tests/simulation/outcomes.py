"""Checks of schedules for the tests of both simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, NamedTuple

from partita.engine.drivers import AllReduce
from partita.engine.testing import Fault, Outcome


class Planted(NamedTuple):
    """A machine with a fault.

    Args:
        machine: the class with the fault, derived from a real one.
        reported: the numbers of the invariants whose breach may be reported.
        seeds: how many seeds are tried.
        at: a seed that finds the fault, tried first.
    """

    machine: type
    reported: str
    seeds: int = 4000
    at: int = 0


class PlantedFaults(NamedTuple):
    """Faults that are switched on together while a driver is played.

    Args:
        name: of what is wrong.
        reported, seeds, at: see `Planted`.
        faults: that are planted.
        driver: that is played.
    """

    name: str
    reported: str
    faults: tuple[Fault, ...]
    driver: Any = AllReduce(replicas=3)
    at: int = 0
    seeds: int = 1000


def report_of(outcome: Outcome) -> str:
    """The violation of a schedule, and its trace."""
    return f"seed {outcome.seed} breaks {outcome.violation}\n" + "\n".join(outcome.trace)


def all_hold(play: Callable[[int], Outcome], seeds: Iterable[int]) -> None:
    """Every invariant holds in every schedule; else the trace of the first violation is shown."""
    for seed in seeds:
        outcome = play(seed)
        assert outcome.violation is None, report_of(outcome)


def is_caught(planted: Planted | PlantedFaults, play: Callable[[int], Outcome]) -> None:
    """The fault is found within these seeds, and what is reported is what it breaks."""
    outcomes = map(play, chain((planted.at,), range(planted.seeds)))
    caught = next((outcome for outcome in outcomes if outcome.violation), None)
    assert caught is not None, "not found within these seeds"
    assert caught.violation is not None
    assert caught.violation.split(":")[0] in planted.reported.split(), caught.violation
    assert caught.trace, "a failure shows its last events"
