"""Products in registers: to the bit what a chain of fused multiply-adds gives, whatever their size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels import Array
from partita.engine.kernels.tiles import Extent, Strides, multiply
from partita.engine.kernels.tiles.forms import OWN_TILE, ROWS, VECTORS
from partita.engine.kernels.tiles.vector_products import NOWHERE, Following
from partita.engine.numerics import compiled, downcast_array, fma, upcast
from tests.draws import examples

_SPARE = 40


@compiled
def _product(
    out: Any,
    into: Any,
    left: Any,
    from_left: Any,
    right: Any,
    from_right: Any,
    extent: Any,
    more: Any,
    next_: Any,
    tile: Any,
) -> None:
    multiply(out, into, left, from_left, right, from_right, extent, more, next_, tile)


@compiled
def _chains(
    out: Any, into: Any, left: Any, from_left: Any, right: Any, from_right: Any, extent: Any, more: Any
) -> None:
    for row in range(extent.rows):
        for lane in range(extent.lanes):
            place = into.at + row * into.row_stride + lane
            total = out[place] if more else out.dtype.type(0)
            for outer in range(extent.outer_steps):
                for step in range(extent.steps):
                    a = from_left.at + outer * from_left.outer_stride + step * from_left.step_stride
                    b = from_right.at + outer * from_right.outer_stride + step * from_right.step_stride
                    total = fma(upcast(left[a + row * from_left.row_stride]), upcast(right[b + lane]), total)
            out[place] = total


def _numbers(draw: np.random.Generator, size: int, precision: str) -> Array:
    values = draw.normal(size=size)
    if precision == "bfloat16":
        return downcast_array(values.astype(np.float32), np.empty(size, np.uint16))
    return values.astype(precision)


@given(
    st.builds(Extent, st.integers(0, 2 * ROWS + 3), st.integers(0, 70), st.integers(0, 3), st.integers(0, 6)),
    st.sampled_from(["float32", "float64", "bfloat16"]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**16),
)
@settings(max_examples=examples(24), deadline=None)
def test_every_element_is_a_chain(
    extent: Extent, precision: str, more: bool, rows_last: bool, seed: int
) -> None:
    rows, lanes, outer_steps, steps = extent
    draw = np.random.default_rng(seed)
    out = draw.normal(size=_SPARE + rows * (lanes + 3) + _SPARE)
    out = out.astype("float32" if precision == "bfloat16" else precision)
    left = _numbers(draw, 2 + rows * outer_steps * steps, precision)
    right = _numbers(draw, 1 + outer_steps * steps * (lanes + 5), precision)
    into = Strides(_SPARE, lanes + 3, 0, 0)
    from_left = Strides(2, 1, rows * steps, rows) if rows_last else Strides(2, outer_steps * steps, steps, 1)
    from_right = Strides(1, 0, steps * (lanes + 5), lanes + 5)
    expected = out.copy()
    _chains(expected, into, left, from_left, right, from_right, extent, more)
    for following in (NOWHERE, Following(len(left), 1000, 0), Following(len(left), 0, 7)):  # may lie anywhere
        found = out.copy()
        _product(found, into, left, from_left, right, from_right, extent, more, following, OWN_TILE)
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("rows", [ROWS - 1, ROWS, ROWS + 1])
@pytest.mark.parametrize("vectors", [1, VECTORS, VECTORS + 1])
def test_every_tile(rows: int, vectors: int) -> None:
    draw = np.random.default_rng(rows)
    for lanes in (16 * vectors - 1, 16 * vectors, 16 * vectors + 1):
        left, right = draw.normal(size=(rows, 4)), draw.normal(size=(4, lanes))
        out = np.full((rows, lanes), np.nan)
        _product(
            out.reshape(-1),
            Strides(0, lanes, 0, 0),
            left.reshape(-1),
            Strides(0, 4, 0, 1),
            right.reshape(-1),
            Strides(0, 0, 0, lanes),
            Extent(rows, lanes, 1, 4),
            False,
            NOWHERE,
            OWN_TILE,
        )
        np.testing.assert_allclose(out, left @ right, rtol=1e-12, atol=1e-12)


def test_does_not_read_what_it_does_not_need() -> None:
    """NaN around the operands, and in what a sum that begins anew finds, leave no trace."""
    rows, lanes, steps = 3, 5, 4
    left, right = np.full(40, np.nan, np.float32), np.full(60, np.nan, np.float32)
    out = np.full(rows * lanes + 40, np.nan, np.float32)
    left[2 : 2 + rows * steps], right[3 : 3 + steps * lanes] = 1, 2
    walks = Strides(0, lanes, 0, 0), Strides(2, steps, 0, 1), Strides(3, 0, 0, lanes)
    _product(
        out,
        walks[0],
        left,
        walks[1],
        right,
        walks[2],
        Extent(rows, lanes, 1, steps),
        False,
        NOWHERE,
        OWN_TILE,
    )
    assert (out[: rows * lanes] == 2 * steps).all()
    assert np.isnan(out[rows * lanes :]).all()
