"""The direction of L-BFGS, by scalars alone.

It must not know where vectors are: it is told their products.

Source: Nocedal and Wright, "Numerical optimization", algorithm 7.4; Chen, Wang and Zhou 2014, "Large-scale
L-BFGS using MapReduce", for the form without vectors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import mul


def two_loop(
    products: Mapping[str, Mapping[str, float]], pairs: Sequence[tuple[str, str]], gradient: str
) -> tuple[tuple[float, str], ...]:
    """The terms (factor, vector) of the direction `-H g`.

    Args:
        products: of two vectors, by their names: every `s` with every `y`, every `y` with every `y`, the
            gradient with all.
        pairs: the names of (move, change of the gradient), oldest first, each with a product above 0. `H`
            begins as `s'y / y'y` of the newest; without pairs it is 1.
        gradient: its name.
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
