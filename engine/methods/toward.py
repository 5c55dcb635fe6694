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
    vectors say how it was reached: the move, and how the gradient changed along it.

    Args:
        terms: (factor, vector).
        step: to be tried first. None: 1/length of the first direction, and then what the step before would
            have gained at its slope.
        slope: of the loss along the direction, where the method knows it. With `step` or `slope` given, an
            iteration saves a request.
        move: the name of the vector for the move; another vector than those of the terms may be overwritten
            before they are read.
        change: of the vector for the change of the gradient.
        note: to be shown with the iteration, if anything is out of the ordinary.
    """

    terms: tuple[tuple[float, str], ...]
    step: float | None = None
    slope: float | None = None
    move: str = "s"
    change: str = "y"
    note: str = ""


Directions: TypeAlias = Generator[Request | Toward, Scalars, None]
"""It yields requests, and is sent their scalars, and `Toward`, for which it is sent `()`."""
