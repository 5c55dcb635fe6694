"""The direction by scalars, against the recursion on vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.methods.lbfgs import two_loop

Array = npt.NDArray[Any]


def textbook(pairs: list[tuple[Array, Array]], gradient: Array) -> Array:
    """`-H g` with vectors."""
    q, alphas = gradient.copy(), []
    for s, y in reversed(pairs):
        alphas.append(s @ q / (s @ y))
        q = q - alphas[-1] * y
    if pairs:
        s, y = pairs[-1]
        q = q * (s @ y) / (y @ y)
    for (s, y), alpha in zip(pairs, reversed(alphas), strict=True):
        q = q + (alpha - y @ q / (s @ y)) * s
    return -q


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40), kept=st.integers(0, 12))
def test_it_is_the_recursion_on_vectors(seed: int, n: int, kept: int) -> None:
    rng = np.random.default_rng(seed)
    curvature = np.exp(rng.uniform(-2, 2, n))
    vectors = {"g": rng.normal(size=n)}
    for i in range(kept):
        vectors[f"s{i}"] = rng.normal(size=n)
        vectors[f"y{i}"] = curvature * vectors[f"s{i}"]
    names = [(f"s{i}", f"y{i}") for i in range(kept)]
    products = {a: {b: float(vectors[a] @ vectors[b]) for b in vectors} for a in vectors}
    terms = two_loop(products, names, "g")
    direction = sum((factor * vectors[name] for factor, name in terms), np.zeros(n))
    expected = textbook([(vectors[s], vectors[y]) for s, y in names], vectors["g"])
    np.testing.assert_allclose(direction, expected, rtol=1e-7, atol=1e-7 * np.abs(expected).max())
