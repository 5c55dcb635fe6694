"""Transposition: every shape, with upcasts, and nothing written outside of the result."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels.tiles.transposition import transpose
from partita.engine.numerics import compiled, downcast_array, upcast_array
from tests.draws import examples


@compiled
def _transpose(
    x: Any, x_at: Any, x_stride: Any, out: Any, out_at: Any, out_stride: Any, rows: Any, columns: Any
) -> None:
    transpose(x, x_at, x_stride, out, out_at, out_stride, rows, columns)


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(0, 3),
    st.sampled_from(["float32", "float64", "bfloat16"]),
)
@settings(max_examples=examples(16), deadline=None)
def test_columns_become_rows(rows: int, columns: int, more: int, precision: str) -> None:
    values = np.random.default_rng(rows).normal(size=(rows, columns + more))
    if precision == "bfloat16":
        x = downcast_array(values.astype(np.float32), np.empty(values.shape, np.uint16))
    else:
        x = values.astype(precision)
    out = np.full((columns + 1, rows + more), np.nan, "float32" if precision == "bfloat16" else precision)
    _transpose(x.reshape(-1), 0, columns + more, out.reshape(-1), 0, rows + more, rows, columns)
    np.testing.assert_array_equal(out[:columns, :rows], upcast_array(x)[:, :columns].T)
    assert np.isnan(out[columns:]).all()
    assert np.isnan(out[:, rows:]).all()
