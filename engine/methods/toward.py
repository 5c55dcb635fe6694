"""What a method with a line search writes: where to go from here."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias

from partita.engine.protocol.commands import Request, Scalars


@dataclass(frozen=True, slots=True)
class Toward:
    """Search along the sum of `factor * vector`.

    When the generator goes on, `x` is the point that was accepted and `g` the gradient there. Two more
    vectors say how it was reached: the move, and how the gradient changed along it. The names `d`, `head`,
    `tail`, and those that end in `_before`, are the search's own.

    Args:
        terms: (factor, vector).
        step: to be tried first. None: 1/length of the first direction, and then what the step before would
            have gained at its slope.
        slope: of the loss along the direction, where the method knows it. With `step` or `slope` given, the
            direction goes with the first trial; without, it is a request by itself.
        move: the name of the vector for the move. It is written at each point that is tried, after the terms
            are read.
        change: of the vector for the change of the gradient, likewise.
        then: operations on vectors for the next direction, done at each point that is tried, when move and
            change are there. What they give at the accepted one is sent to the generator. They may write
            vectors of the method's own, if nothing is lost when the next trial writes them again.
        note: to be shown with the iteration, if anything is out of the ordinary.
    """

    terms: tuple[tuple[float, str], ...]
    step: float | None = None
    slope: float | None = None
    move: str = "s"
    change: str = "y"
    then: Request = ()
    note: str = ""


Directions: TypeAlias = Generator[Request | Toward, Scalars, None]
"""It yields requests, and `Toward`, and is sent their scalars (`Toward` has those of `then`)."""
