"""The bits of an element do not depend on its place in the array: cuts move elements."""

from __future__ import annotations

import numpy as np
import pytest

from partita.engine.kernels.activations import activate, add_error, multiply_by_slope
from partita.layers.activations import ACTIVATIONS

FUNCTIONS = sorted(ACTIVATIONS)
DTYPES = [np.float32, np.float64]


def sums(n: int, dtype: type) -> np.ndarray:
    """Numbers of every size, with the corners among them."""
    draw = np.random.default_rng(n)
    found = draw.normal(size=n) * draw.choice([1e-30, 1e-3, 1, 10, 1000], size=n)
    found[:6] = [0.0, -0.0, np.inf, -np.inf, 88.8, -104.0]
    return found.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_bits_do_not_depend_on_the_place(function: str, dtype: type) -> None:
    n = 131
    given, error, before = sums(n, dtype), sums(n, dtype)[::-1].copy(), np.ones(n, dtype)
    error[~np.isfinite(error)] = 1
    state, delta, added = given.copy(), error.copy(), before.copy()
    activate(function, state)
    multiply_by_slope(function, state, delta)
    add_error(function, state, error, added, accumulate=True)
    for start in range(n):
        for length in (1, 3, 16, 35):
            place = slice(start, start + length)
            cut_state, cut_delta, cut_added = given[place].copy(), error[place].copy(), before[place].copy()
            activate(function, cut_state)
            multiply_by_slope(function, cut_state, cut_delta)
            add_error(function, cut_state, error[place].copy(), cut_added, accumulate=True)
            assert cut_state.tobytes() == state[place].tobytes()
            assert cut_delta.tobytes() == delta[place].tobytes()
            assert cut_added.tobytes() == added[place].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_bits_do_not_depend_on_the_alignment(function: str, dtype: type) -> None:
    given = sums(64, dtype)
    expected = given.copy()
    activate(function, expected)
    room = np.empty(64 + 32, dtype)
    for offset in range(32):
        moved = room[offset : offset + 64]
        moved[:] = given
        activate(function, moved)
        assert moved.tobytes() == expected.tobytes()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_equals_the_definition(function: str) -> None:
    value, slope = ACTIVATIONS[function]
    given = np.linspace(-20, 20, 83)
    state, error, added = given.copy(), np.ones(83), np.ones(83)
    activate(function, state)
    multiply_by_slope(function, state, error)
    add_error(function, state, np.ones(83), added, accumulate=True)
    np.testing.assert_allclose(state, [value(x) for x in given], rtol=1e-14, atol=1e-16)
    np.testing.assert_allclose(error, [slope(y) for y in state], rtol=1e-12, atol=1e-16)
    np.testing.assert_allclose(added - 1, error, atol=1e-15)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_nan_stays_one(function: str) -> None:
    state = np.array([np.nan, 1.0])
    activate(function, state)
    assert np.isnan(state[0])
    assert np.isfinite(state[1])
