"""Checks of schedules for the tests of both simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from itertools import chain
from typing import NamedTuple, TypeVar

from partita.engine.testing import Outcome

Machines = TypeVar("Machines")


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

    def among(self, machines: type[Machines]) -> Machines:
        """The machines of a schedule, with the faulty one in the place of the real one."""
        (name,) = (one.name for one in fields(machines) if issubclass(self.machine, one.default))  # type: ignore[arg-type]
        return machines(**{name: self.machine})


def report_of(outcome: Outcome) -> str:
    """The violation of a schedule, and its trace."""
    return f"seed {outcome.seed} breaks {outcome.violation}\n" + "\n".join(outcome.trace)


def all_hold(play: Callable[[int], Outcome], seeds: Iterable[int]) -> None:
    """Every invariant holds in every schedule; else the trace of the first violation is shown."""
    for seed in seeds:
        outcome = play(seed)
        assert outcome.violation is None, report_of(outcome)


def is_caught(planted: Planted, play: Callable[[int], Outcome]) -> None:
    """The fault is found within these seeds, and what is reported is what it breaks."""
    outcomes = map(play, chain((planted.at,), range(planted.seeds)))
    caught = next((outcome for outcome in outcomes if outcome.violation), None)
    assert caught is not None, "not found within these seeds"
    assert caught.violation is not None
    assert caught.violation.split(":")[0] in planted.reported.split(), caught.violation
    assert caught.trace, "a failure shows its last events"
