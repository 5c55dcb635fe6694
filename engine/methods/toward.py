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
    vectors say how it was reached: the move, and how the gradient changed along it. The names `d`,
    `x_before`, `g_before`, `head`, `tail` and `tail_before` are the search's own.

    Args:
        terms: (factor, vector).
        step: to be tried first. None: 1/length of the first direction, and then what the step before would
            have gained at its slope.
        slope: of the loss along the direction, where the method knows it. With `step` or `slope` given, the
            direction and the first trial are one request.
        ask: operations that are done with every trial, after its evaluation, on the vectors as they are if it
            is accepted: what they give at the one that is accepted is sent to the generator. So products that
            the next direction needs cost no request of their own. What a trial writes, the next one must
            write again.
        move: the name of the vector for the move. Every trial writes it.
        change: of the vector for the change of the gradient, likewise.
        note: to be shown with the iteration, if anything is out of the ordinary.
    """

    terms: tuple[tuple[float, str], ...]
    step: float | None = None
    slope: float | None = None
    ask: Request = ()
    move: str = "s"
    change: str = "y"
    note: str = ""


Directions: TypeAlias = Generator[Request | Toward, Scalars, None]
"""It yields `Toward`, and is sent what it asks for; also requests, to be done at once, for their scalars."""
