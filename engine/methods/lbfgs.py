"""L-BFGS whose vectors stay where they are: all products come with a trial, the direction goes with the next.

Source: DistBelief, section 4.2; Nocedal 1980, "Updating quasi-Newton matrices with limited storage"; Chen,
Wang and Zhou 2014, "Large-scale L-BFGS using MapReduce". Which pairs make curvature when batches are sampled:
Berahas, Nocedal and Takac 2016, "A multi-batch L-BFGS method for machine learning".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from partita.engine.methods.line_search_method import LineSearchMethod
from partita.engine.methods.objective import GRADIENT
from partita.engine.methods.toward import Directions, Toward
from partita.engine.methods.two_loop import two_loop
from partita.engine.protocol.commands import Dots, Request, Scalars

_FLAT: Final = 1e-10
"""A move and its change of the gradient whose cosine is not above this are rounding, not curvature."""


@dataclass(frozen=True, kw_only=True)
class LBFGS(LineSearchMethod):
    """Limited-memory BFGS: the shards hold `2 * (history + 1)` vectors for its pairs.

    Args:
        history: pairs that are kept.

    Raises:
        ValueError: `history` below 1, or what `LineSearchMethod` refuses.
    """

    history: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.history < 1:
            raise ValueError(f"history is {self.history}; keep at least 1 pair")

    def directions(self) -> Directions:
        """See `LineSearchMethod.directions`."""
        pairs, note = Pairs(self.history), ""
        while True:
            s, y = pairs.free
            step = 1.0 if pairs.kept else None
            there = Toward(pairs.direction(), step, move=s, change=y, then=pairs.request(), note=note)
            note = "" if pairs.take((yield there)) else "a pair without curvature was left out"


class Pairs:
    """The pairs that are kept, by name, and the products of their vectors.

    One slot more than are kept is free for the next move, so that a pair that is no good costs no other.
    """

    def __init__(self, most: int) -> None:
        self.kept: list[tuple[str, str]] = []
        """Names (move, change), oldest first."""
        self._slots: Final = tuple((f"s{n}", f"y{n}") for n in range(most + 1))
        self.free = self._slots[0]
        """Where the next pair goes."""
        self._vectors: tuple[str, ...] = self.free
        self._rows: Final[dict[str, dict[str, float]]] = {
            name: {} for name in (*(name for slot in self._slots for name in slot), GRADIENT)
        }

    def request(self) -> Request:
        """All that the pair in the free slot, and the gradient, bring with them."""
        return (Dots((*self.free, GRADIENT), self._vectors),)

    def take(self, scalars: Scalars) -> bool:
        """Takes the answer; the oldest pair makes room. False: the new one lacks curvature, and is out."""
        new, vectors, rows = self.free, self._vectors, self._rows
        for n, left in enumerate((*new, GRADIENT)):
            found = scalars[n * len(vectors) : (n + 1) * len(vectors)]
            rows[left].update(zip(vectors, found, strict=True))
            for right, product in zip(vectors, found, strict=True):
                rows[right][left] = product
        s, y = new
        size = math.sqrt(rows[s][s]) * math.sqrt(rows[y][y])
        if not rows[s][y] > _FLAT * size:
            return False
        self.kept = [*self.kept, new][-(len(self._slots) - 1) :]
        self.free = next(slot for slot in self._slots if slot not in self.kept)
        moves, changes = zip(*self.kept, self.free, strict=True)
        self._vectors = (*moves, *changes)
        return True

    def direction(self) -> tuple[tuple[float, str], ...]:
        """The terms of `-H g`."""
        return two_loop(self._rows, self.kept, GRADIENT)
