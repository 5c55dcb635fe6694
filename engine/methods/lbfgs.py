"""L-BFGS on distributed vectors: each trial returns all products, and the direction is sent with the next
one.

Source: DistBelief, section 4.2; Nocedal 1980, "Updating quasi-Newton matrices with limited storage"; Nocedal
and Wright, "Numerical optimization", algorithm 7.4; Chen, Wang and Zhou 2014, "Large-scale L-BFGS using
MapReduce", for the form without vectors. Curvature pairs of sampled batches: Berahas, Nocedal and Takac 2016,
"A multi-batch L-BFGS method for machine learning".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Final

from typing_extensions import override

from partita.engine.methods.line_search_method import LineSearchMethod
from partita.engine.methods.method import Direction, DirectionGenerator
from partita.engine.methods.objective import GRADIENT
from partita.engine.protocol.commands import Dots, Request, Scalars

_FLAT: Final = 1e-10
"""Cosine of a move and its change of the gradient, up to which they are rounding, not curvature."""


@dataclass(frozen=True, kw_only=True)
class LBFGS(LineSearchMethod):
    """Limited-memory BFGS; the shards hold `2 * (history + 1)` vectors for its pairs.

    Args:
        history: number of stored pairs.

    Raises:
        ValueError: `history` below 1, or an invalid setting of `LineSearchMethod`.
    """

    history: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.history < 1:
            raise ValueError(f"history is {self.history}; keep at least 1 pair")

    @override
    def directions(self) -> DirectionGenerator:
        pairs, note = Pairs(self.history), ""
        while True:
            s, y = pairs.free
            step = 1.0 if pairs.stored else None
            direction = Direction(pairs.direction(), step, move=s, change=y, then=pairs.request(), note=note)
            note = "" if pairs.add((yield direction)) else "a pair without curvature was left out"


class Pairs:
    """Curvature pairs, by name, and the products of their vectors.

    One slot more than `history` is free for the next pair, so that a rejected pair replaces no other.
    """

    def __init__(self, history: int) -> None:
        self.stored: list[tuple[str, str]] = []
        """Names (move, change), oldest first."""
        self._slots: Final = tuple((f"s{n}", f"y{n}") for n in range(history + 1))
        self.free = self._slots[0]
        """Names of the next pair."""
        self._vectors: tuple[str, ...] = self.free
        self._products: Final[dict[str, dict[str, float]]] = {
            name: {} for name in (*(name for slot in self._slots for name in slot), GRADIENT)
        }

    def request(self) -> Request:
        """Returns all products of the free pair and the gradient."""
        return (Dots((*self.free, GRADIENT), self._vectors),)

    def add(self, scalars: Scalars) -> bool:
        """Stores the free pair, given the products of `request`; False if it lacks curvature."""
        new, vectors, products = self.free, self._vectors, self._products
        for n, left in enumerate((*new, GRADIENT)):
            found = scalars[n * len(vectors) : (n + 1) * len(vectors)]
            products[left].update(zip(vectors, found, strict=True))
            for right, product in zip(vectors, found, strict=True):
                products[right][left] = product
        s, y = new
        size = math.sqrt(products[s][s]) * math.sqrt(products[y][y])
        if not products[s][y] > _FLAT * size:
            return False
        self.stored = [*self.stored, new][-(len(self._slots) - 1) :]
        self.free = next(slot for slot in self._slots if slot not in self.stored)
        moves, changes = zip(*self.stored, self.free, strict=True)
        self._vectors = (*moves, *changes)
        return True

    def direction(self) -> tuple[tuple[float, str], ...]:
        """Returns the terms of `-H g`."""
        return two_loop(self._products, self.stored, GRADIENT)


def two_loop(
    products: Mapping[str, Mapping[str, float]], pairs: Sequence[tuple[str, str]], gradient: str
) -> tuple[tuple[float, str], ...]:
    """Computes the terms (factor, vector) of the direction `-H g` from scalars alone.

    `products` of two vectors, by their names: every `s` with every `y`, every `y` with every `y`, the
    gradient with all. `pairs` are names of (move, change of the gradient), oldest first, each with a product
    above 0. `H` starts as `s'y / y'y` of the newest; without pairs it is 1.
    """
    factors = {gradient: 1.0}

    def along(vector: str) -> float:
        return math.fsum(map(mul, factors.values(), map(products[vector].__getitem__, factors)))

    for s, y in reversed(pairs):
        factors[y] = -along(s) / products[s][y]
    if pairs:
        s, y = pairs[-1]
        size = products[s][y] / products[y][y]
        first = {y: -factors[y] for _, y in pairs}
        factors = {name: size * factor for name, factor in factors.items()}
        for s, y in pairs:
            factors[s] = first[y] - along(y) / products[s][y]
    return tuple((-factor, name) for name, factor in factors.items())
