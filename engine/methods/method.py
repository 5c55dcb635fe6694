"""Interface of batch methods, and the search directions that most of them yield."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias

from partita.engine.methods.objective import Objective
from partita.engine.protocol.commands import Request, Scalars, Steps
from partita.layers.arguments import Arguments


class Method(Arguments, ABC):
    """A minimisation method. Subclasses are immutable settings; a run's state is in its `steps`.

    Most methods are a direction and a line search, see `LineSearchMethod`.
    """

    @abstractmethod
    def steps(self, objective: Objective) -> Steps:
        """Minimises the objective from the point in `x`, where the result is at the end.

        Must yield the same requests when it receives the same scalars, because an interrupted run is repeated
        from its journal: no clock, no random numbers without a fixed seed, no state between two calls.
        """


@dataclass(frozen=True, slots=True)
class Direction:
    """Requests a search along the sum of `factor * vector`.

    When the generator resumes, `x` is the accepted point and `g` the gradient there. Two more vectors hold
    the move to it and the change of the gradient. The search itself uses the names `d`, `head`, `tail`, and
    those that end in `_before`.

    Args:
        terms: (factor, vector).
        step: first step to try. None: 1/length of the first direction, and then what the previous step would
            have gained at its slope.
        slope: of the loss along the direction, where the method knows it. With `step` or `slope`, the
            direction is sent with the first trial; without, it is a request by itself.
        move: name of the vector for the move, written at each trial point, after the terms are read.
        change: name of the vector for the change of the gradient, likewise.
        then: operations for the next direction, done at each trial point, when move and change are there. The
            generator receives their scalars at the accepted one. They may write the method's own vectors, if
            repeating them at the next trial loses nothing.
        note: shown with the iteration, for what is out of the ordinary.
    """

    terms: tuple[tuple[float, str], ...]
    step: float | None = None
    slope: float | None = None
    move: str = "s"
    change: str = "y"
    then: Request = ()
    note: str = ""


DirectionGenerator: TypeAlias = Generator[Request | Direction, Scalars, None]
"""Yields requests and directions, and receives their scalars (for a direction those of `then`)."""
