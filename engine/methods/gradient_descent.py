"""Gradient descent with a line search: the shortest method, and a pattern for others."""

from __future__ import annotations

from dataclasses import dataclass

from partita.engine.methods.line_search_method import LineSearchMethod
from partita.engine.methods.objective import GRADIENT
from partita.engine.methods.toward import Directions, Toward
from partita.engine.protocol.commands import dot


@dataclass(frozen=True, kw_only=True)
class GradientDescent(LineSearchMethod):
    """Goes down the gradient, as far as the line search finds good."""

    def directions(self) -> Directions:
        """See `LineSearchMethod.directions`."""
        then = (dot(GRADIENT, GRADIENT),)
        toward = Toward(((-1.0, GRADIENT),), then=then)
        while True:
            (square,) = yield toward
            toward = Toward(((-1.0, GRADIENT),), slope=-square, then=then)
