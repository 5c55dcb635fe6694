"""Activations against their definitions; and their bits do not depend on the place: cuts move elements."""

from __future__ import annotations

import numpy as np
import pytest

from partita.engine.kernels import Array
from partita.engine.kernels.activations import LOOPS, activate, add_gradient
from partita.engine.numerics import downcast_array, master, storage, upcast_array
from partita.layers.activations import ACTIVATIONS

FUNCTIONS = sorted(ACTIVATIONS)
PRECISIONS = ["float32", "float64", "bfloat16"]
TOLERANCE = {"float32": 1e-6, "float64": 1e-14, "bfloat16": 2.0**-7}


def stored(numbers: Array, precision: str) -> Array:
    return downcast_array(numbers.astype(master(precision)), np.zeros(numbers.shape, storage(precision)))


def sums(n: int, precision: str) -> Array:
    """Numbers of every size, with the corners among them."""
    draw = np.random.default_rng(n)
    found = draw.normal(size=n) * draw.choice([1e-30, 1e-3, 1, 10, 1000], size=n)
    found[:6] = [0.0, -0.0, np.inf, -np.inf, 88.8, -104.0]
    return stored(found, precision)


def finite(numbers: Array, precision: str) -> Array:
    wide = upcast_array(numbers)
    return stored(np.where(np.isfinite(wide), wide, 1), precision)


def all_of_it(function: str, given: Array, error: Array, before: Array) -> tuple[Array, ...]:
    """A state, the errors of its sums, and those written to an input, or added to what it holds."""
    state, delta, written, accumulated = given.copy(), error.copy(), before.copy(), before.copy()
    activate(function, state)
    LOOPS[function].multiply(state, delta)
    add_gradient(function, state, error, written, accumulate=False)
    add_gradient(function, state, error, accumulated, accumulate=True)
    return state, delta, written, accumulated


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_bits_do_not_depend_on_the_place(function: str, precision: str) -> None:
    n = 131
    given, before = sums(n, precision), stored(np.ones(n), precision)
    error = finite(given[::-1].copy(), precision)
    whole = all_of_it(function, given, error, before)
    for start in range(n):
        for length in (1, 3, 16, 35):
            place = slice(start, start + length)
            cut = all_of_it(function, given[place].copy(), error[place].copy(), before[place].copy())
            for piece, of_whole in zip(cut, whole, strict=True):
                assert piece.tobytes() == of_whole[place].tobytes()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_bits_do_not_depend_on_the_alignment(function: str, precision: str) -> None:
    given = sums(64, precision)
    expected = given.copy()
    activate(function, expected)
    buffer = np.empty(64 + 32, given.dtype)
    for offset in range(32):
        moved = buffer[offset : offset + 64]
        moved[:] = given
        activate(function, moved)
        assert moved.tobytes() == expected.tobytes()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_equals_the_definition(function: str, precision: str) -> None:
    value, slope = ACTIVATIONS[function]
    allowed = TOLERANCE[precision]
    given, ones = stored(np.linspace(-20, 20, 83), precision), stored(np.ones(83), precision)
    state, delta, written, accumulated = map(upcast_array, all_of_it(function, given, ones, ones))
    expected = [value(float(x)) for x in upcast_array(given)]
    slopes = np.array([slope(float(y)) for y in state])
    np.testing.assert_allclose(state, expected, rtol=allowed, atol=1e-16)
    for found in (delta, written):
        np.testing.assert_allclose(found, slopes, rtol=allowed, atol=allowed * 1e-2)
    np.testing.assert_allclose(accumulated, 1 + slopes, rtol=allowed)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 40)])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_bias_and_the_activation_in_one_pass(function: str, shape: tuple[int, int], precision: str) -> None:
    """The fused pass equals the two passes, rounded once; from float32 sums as well."""
    given = stored(np.random.default_rng(0).normal(size=shape) * 3, precision)
    bias = stored(np.random.default_rng(1).normal(size=shape[0]), precision)
    expected = upcast_array(given) + upcast_array(bias)[:, None]
    activate(function, expected)
    in_place, apart = given.copy(), np.zeros_like(given)
    LOOPS[function].finish(in_place, bias)
    LOOPS[function].finish_into(upcast_array(given), bias, apart)
    assert in_place.tobytes() == apart.tobytes() == stored(expected, precision).tobytes()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_nan_stays_one(function: str, precision: str) -> None:
    state = stored(np.array([np.nan, 1.0]), precision)
    activate(function, state)
    assert np.isnan(upcast_array(state)[0])
    assert np.isfinite(upcast_array(state)[1])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_arrays_without_rows_compile_for_all_others(function: str, precision: str) -> None:
    dtype, loops = storage(precision), LOOPS[function]
    used = (loops.activate, loops.multiply, loops.write)
    all_of_it(function, *(np.zeros(0, dtype) for _ in range(3)))
    compiled = [len(loop.signatures) for loop in used]
    all_of_it(function, *(np.zeros(3, dtype) for _ in range(3)))
    assert [len(loop.signatures) for loop in used] == compiled
