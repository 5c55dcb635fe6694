"""Gradient descent and nonlinear conjugate gradients: the shortest methods, and a pattern for others.

Source: Hager and Zhang 2005, "A new conjugate gradient method with guaranteed descent and an efficient line
search", for the factor of the last move.
"""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from partita.engine.methods.line_search_method import LineSearchMethod
from partita.engine.methods.method import Direction, DirectionGenerator
from partita.engine.methods.objective import GRADIENT
from partita.engine.protocol.commands import Dots, dot


@dataclass(frozen=True, kw_only=True)
class GradientDescent(LineSearchMethod):
    """Searches along the negative gradient."""

    @override
    def directions(self) -> DirectionGenerator:
        then = (dot(GRADIENT, GRADIENT),)
        direction = Direction(((-1.0, GRADIENT),), then=then)
        while True:
            (square,) = yield direction
            direction = Direction(((-1.0, GRADIENT),), slope=-square, then=then)


@dataclass(frozen=True, kw_only=True)
class NonlinearCG(LineSearchMethod):
    """Nonlinear conjugate gradients: stores one move, and needs a closer line search, so `c2` is smaller."""

    c2: float = 0.1

    @override
    def directions(self) -> DirectionGenerator:
        then = Dots(("y",), ("y", "s", GRADIENT)), Dots((GRADIENT,), ("s", GRADIENT))
        direction = Direction(((-1.0, GRADIENT),), then=then)
        while True:
            yy, sy, yg, sg, gg = yield direction
            factor = (yg - 2 * sg * yy / sy) / sy if sy > 0 else 0.0
            direction = Direction(((-1.0, GRADIENT), (factor, "s")), slope=factor * sg - gg, then=then)
