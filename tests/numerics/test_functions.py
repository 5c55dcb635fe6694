"""The functions of compiled loops: accurate to a few units in the last place, wherever a number lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

from partita.engine.numerics.functions import exponential, hyperbolic_tangent, logistic

Array = np.ndarray[Any, Any]
Loop = Callable[[Array, Array], None]
DTYPES = [np.float32, np.float64]
fresh = numba.njit(error_model="numpy")  # not cached: an edit of the functions must show here


@fresh
def exponentials(x: Array, out: Array) -> None:
    for i in range(len(x)):
        out[i] = exponential(x[i])


@fresh
def logistics(x: Array, out: Array) -> None:
    for i in range(len(x)):
        out[i] = logistic(x[i])


@fresh
def tangents(x: Array, out: Array) -> None:
    for i in range(len(x)):
        out[i] = hyperbolic_tangent(x[i])


def true_logistic(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


FUNCTIONS: list[tuple[Loop, Callable[[Array], Array], float]] = [
    (exponentials, np.exp, 1.1),
    (logistics, true_logistic, 2.5),
    (tangents, np.tanh, 2.6),
]
IDS = ["exponential", "logistic", "hyperbolic_tangent"]


def applied(loop: Loop, x: Array) -> Array:
    out = np.full_like(x, 7)
    loop(x, out)
    return out


def numbers(dtype: type) -> Array:
    """Over the whole range where results are neither 0 nor infinite, near zero, and very near zero."""
    end = 87.0 if dtype is np.float32 else 708.0
    draw = np.random.default_rng(0)
    tiny = 10.0 ** np.linspace(-30, 0, 4001)
    parts = [
        np.linspace(-end, end, 50_001),
        draw.normal(size=50_000) * 5,
        draw.normal(size=50_000) / 5,
        tiny,
        -tiny,
    ]
    return np.concatenate(parts).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("loop", "function", "units"), FUNCTIONS, ids=IDS)
def test_within_units_in_the_last_place(
    loop: Loop, function: Callable[[Array], Array], units: float, dtype: type
) -> None:
    x = numbers(dtype)
    expected = function(x.astype(np.longdouble))  # 64 bits of fraction on this architecture
    if np.finfo(np.longdouble).nmant <= np.finfo(dtype).nmant:
        pytest.skip("there is no wider type here to compare float64 with")
    spacing = np.spacing(np.abs(expected).astype(dtype)).astype(np.longdouble)
    assert np.max(np.abs(applied(loop, x) - expected) / spacing) <= units


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loop", [loop for loop, _, _ in FUNCTIONS], ids=IDS)
def test_bits_do_not_depend_on_offset_and_length(loop: Loop, dtype: type) -> None:
    x = np.random.default_rng(1).normal(size=97).astype(dtype) * 20
    whole = applied(loop, x)
    buffer, out = np.empty(97 + 64, dtype), np.empty(97 + 64, dtype)
    for offset in range(32):
        for length in (1, 2, 15, 16, 17, 33, 97):
            source, target = buffer[offset : offset + length], out[31 - offset : 31 - offset + length]
            source[:] = x[:length]
            loop(source, target)
            assert target.tobytes() == whole[:length].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_at_the_ends(dtype: type) -> None:
    least, most = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    x = np.array([-np.inf, -most, 0.0, -0.0, least, most, np.inf, np.nan], dtype)
    np.testing.assert_array_equal(applied(exponentials, x), [0, 0, 1, 1, 1, np.inf, np.inf, np.nan])
    np.testing.assert_array_equal(applied(logistics, x), [0, 0, 0.5, 0.5, 0.5, 1, 1, np.nan])
    np.testing.assert_array_equal(applied(tangents, x), [-1, -1, 0, 0, least, 1, 1, np.nan])


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_results_are_not_flushed_to_zero(dtype: type) -> None:
    """Below the smallest normal number, results are as exact as such numbers can be."""
    info = np.finfo(dtype)
    x = np.linspace(
        np.log(float(info.smallest_subnormal)) * 0.999, np.log(float(info.smallest_normal)), 999
    ).astype(dtype)
    expected = np.exp(x.astype(np.longdouble))
    for found in (applied(exponentials, x), applied(logistics, x)):
        assert (found > 0).all()
        assert np.max(np.abs(found - expected)) <= 2.5 * info.smallest_subnormal
