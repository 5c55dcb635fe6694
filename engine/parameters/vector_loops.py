"""Compiled sums of a batch method's vectors, a few vectors in each pass over memory; all sums in float64."""

from __future__ import annotations

import numpy as np

from partita.engine.numerics import compiled, compiled_reassociating
from partita.engine.parameters.vector import Vector


@compiled_reassociating
def add_products(sums: Vector, at: int, first: Vector, second: Vector, third: Vector, vector: Vector) -> None:
    """Adds the products of three vectors with one, each `[n]`, to `sums[at]` and the next two."""
    one = two = three = 0.0
    for i in range(vector.size):
        number = np.float64(vector[i])
        one += first[i] * number
        two += second[i] * number
        three += third[i] * number
    sums[at] += one
    sums[at + 1] += two
    sums[at + 2] += three


@compiled_reassociating
def add_product(sums: Vector, at: int, left: Vector, right: Vector) -> None:
    """Adds the product of two vectors `[n]` to `sums[at]`."""
    total = 0.0
    for i in range(left.size):
        total += np.float64(left[i]) * right[i]
    sums[at] += total


@compiled
def add_term(sums: Vector, factor: float, vector: Vector) -> None:
    """`sums += factor * vector`, each `[n]`."""
    for i in range(vector.size):
        sums[i] += factor * vector[i]


@compiled
def add_terms(
    sums: Vector,
    factors: tuple[float, float, float, float],
    first: Vector,
    second: Vector,
    third: Vector,
    fourth: Vector,
) -> None:
    """Adds four terms, one after the other, as `add_term`."""
    a, b, c, d = factors
    for i in range(first.size):
        sums[i] = sums[i] + a * first[i] + b * second[i] + c * third[i] + d * fourth[i]
