"""Nonlinear conjugate gradients.

Source: Hager and Zhang 2005, "A new conjugate gradient method with guaranteed descent and an efficient line
search", for the factor of the last move.
"""

from __future__ import annotations

from dataclasses import dataclass

from partita.engine.methods.line_search_method import LineSearchMethod
from partita.engine.methods.objective import GRADIENT
from partita.engine.methods.toward import Directions, Toward
from partita.engine.protocol.commands import Dots


@dataclass(frozen=True, kw_only=True)
class NonlinearCG(LineSearchMethod):
    """Keeps one move where L-BFGS keeps many; needs a closer line search, so `c2` is smaller."""

    c2: float = 0.1

    def directions(self) -> Directions:
        """See `LineSearchMethod.directions`."""
        then = Dots(("y",), ("y", "s", GRADIENT)), Dots((GRADIENT,), ("s", GRADIENT))
        toward = Toward(((-1.0, GRADIENT),), then=then)
        while True:
            yy, sy, yg, sg, gg = yield toward
            factor = (yg - 2 * sg * yy / sy) / sy if sy > 0 else 0.0
            toward = Toward(((-1.0, GRADIENT), (factor, "s")), slope=factor * sg - gg, then=then)
