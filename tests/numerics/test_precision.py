"""Precisions, and bfloat16 against torch's."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from partita.engine.numerics import (
    downcast,
    downcast_array,
    master,
    storage,
    upcast,
    upcast_array,
)

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize(
    ("precision", "stored", "kept"),
    [
        ("float32", np.float32, np.float32),
        ("float64", np.float64, np.float64),
        ("bfloat16", np.uint16, np.float32),
    ],
)
def test_how_numbers_lie_in_memory(precision: str, stored: type, kept: type) -> None:
    assert storage(precision) == stored
    assert master(precision) == kept


def narrowed(numbers: Array) -> Array:
    return downcast_array(numbers, np.zeros(numbers.shape, np.uint16))


def torch_narrowed(numbers: Array) -> Array:
    bits: Array = torch.from_numpy(numbers).to(torch.bfloat16).view(torch.uint16).numpy()
    return bits


def test_every_bfloat16_is_upcast_exactly_and_comes_back() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    wide = upcast_array(bits)
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(wide, torch.from_numpy(bits).view(torch.bfloat16).float().numpy())
    back, numbers = narrowed(wide), ~np.isnan(wide)
    np.testing.assert_array_equal(back[numbers], bits[numbers])
    assert np.isnan(upcast_array(back[~numbers])).all()


@given(arrays.arrays(np.uint32, st.integers(1, 70)))
def test_any_float32_is_downcast_as_torch_does(bits: Array) -> None:
    numbers = bits.view(np.float32)
    found, real = narrowed(numbers), ~np.isnan(numbers)
    np.testing.assert_array_equal(found[real], torch_narrowed(numbers)[real])
    assert np.isnan(upcast_array(found[~real])).all()


def test_ties_go_to_the_even_neighbour_and_large_numbers_to_infinity() -> None:
    halfway = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0xFF7FFFFF], np.uint32).view(
        np.float32
    )
    np.testing.assert_array_equal(narrowed(halfway), [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0xFF80])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_other_types_are_copied(dtype: type) -> None:
    numbers = np.random.default_rng(0).normal(size=(3, 5)).astype(dtype)
    wide = upcast_array(numbers)
    assert wide is not numbers
    np.testing.assert_array_equal(wide, numbers)
    out = np.zeros_like(numbers)
    assert downcast_array(numbers, out) is out
    np.testing.assert_array_equal(out, numbers)


def test_whole_arrays_are_written_where_asked() -> None:
    numbers = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    out = np.zeros((3, 5), np.float32)
    assert upcast_array(narrowed(numbers), out) is out
    np.testing.assert_allclose(out, numbers, rtol=2**-8)


@numba.njit  # not cached: an edit of the conversions must show here
def _doubled(numbers: Array) -> None:
    for i in range(len(numbers)):
        numbers[i] = downcast(upcast(numbers[i]) * 2, numbers[i])


@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
def test_one_loop_serves_every_precision(precision: str) -> None:
    given_numbers = np.array([1.5, -0.25, 3.0], master(precision))
    stored = np.zeros(3, storage(precision))
    downcast_array(given_numbers, stored)
    _doubled(stored)
    np.testing.assert_array_equal(upcast_array(stored), given_numbers * 2)
