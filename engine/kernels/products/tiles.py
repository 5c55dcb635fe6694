"""Products of two matrices by our own tiles, prepared, and cut into blocks that stay in the cache.

Every element is a chain of fused multiply-adds over the terms in ascending order, as in `vector_products`:
neither tiles, blocks nor threads change its bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from partita.engine.kernels.calls import bound
from partita.engine.kernels.kernel import Array, Call
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.tiles.forms import FLAT_TILE, OWN_TILE
from partita.engine.kernels.tiles.llvm_vectors import LINE_BYTES
from partita.engine.kernels.tiles.scratch import Scratch
from partita.engine.kernels.tiles.transposition import transpose
from partita.engine.kernels.tiles.vector_products import NOWHERE, Extent, Strides, multiply
from partita.engine.numerics import compiled

_PANEL: Final = 96
"""Rows whose numbers, for the terms of a block, stay in the cache while the lanes go by."""
_TERMS_BYTES_IN_ROWS: Final = 2048
_TERMS_BYTES_IN_COLUMNS: Final = 1024
"""Size of a block of terms. Those of rows that lie in columns come from as many places far apart."""


def product(
    a: Array,
    b: Array,
    out: Array,
    *,
    pool: ThreadPool,
    scratch: Scratch | None = None,
    accumulate: bool = False,
    flat: bool = False,
) -> Call:
    """Prepares `a @ b` into `out`; the rows are split over the threads of the pool.

    Args:
        a: `[m, k]`, of the type of `out` or bfloat16's bits; in rows or in columns, which may lie apart.
        b: `[k, n]`, likewise. If it lies in columns, each call transposes it first.
        out: `[m, n]`, float32 or float64, C-contiguous.
        pool: the threads that compute it.
        scratch: of the type of `out`, for `b` transposed; it may serve many products. None for one of its
            own.
        accumulate: whether the chains begin with what is in `out`.
        flat: whether the tiles are flat; that changes no bit.
    """
    right = _flat(b)
    if b.strides[1] == b.itemsize:
        multiply = _of_rows(a, right, b.shape[1], out, pool, accumulate=accumulate, flat=flat)
        return partial(multiply, right, b.strides[0] // b.itemsize)
    stride = padded_stride(b.shape[1], out.itemsize)
    size, buffer = len(b) * stride, scratch or Scratch(1, out.dtype)
    buffer.reserve(size)
    backward_sum = _transposition(b.T, out, stride, pool)
    multiply = _of_rows(a, out.reshape(-1), b.shape[1], out, pool, accumulate=accumulate, flat=flat)

    def call() -> None:
        with buffer.take(size) as transposed:
            backward_sum(transposed)
            multiply(transposed, stride)

    return call


def _of_rows(
    a: Array, right: Array, lanes: int, out: Array, pool: ThreadPool, *, accumulate: bool, flat: bool
) -> Callable[[Array, int], None]:
    """Prepares `a` times rows of so many lanes in a flat array, like `right`, a stride apart."""
    (m, k), left, result = a.shape, _flat(a), out.reshape(-1)
    row_stride, step_stride = (stride // a.itemsize for stride in a.strides)
    bound(_rows, result, left, right, (row_stride, step_stride, 0), (0, 0), (k, lanes), accumulate, flat)

    def multiply(right: Array, stride: int) -> None:
        def work(start: int, stop: int) -> None:
            strides = row_stride, step_stride, stride
            _rows(result, left, right, strides, (start, stop), (k, lanes), accumulate, flat)

        pool.split(0, m, work, operations=2.0 * m * k * lanes)

    return multiply


def _transposition(matrix: Array, like: Array, stride: int, pool: ThreadPool) -> Callable[[Array], None]:
    """Prepares the transposition of a matrix in rows into a flat array, a stride apart."""
    (n_rows, n_columns), x, x_stride = matrix.shape, _flat(matrix), matrix.strides[0] // matrix.itemsize
    in_line = LINE_BYTES // matrix.itemsize
    bound(_turn, x, x_stride, like.reshape(-1), stride, 0, 0, n_columns)

    def backward_sum(transposed: Array) -> None:
        def work(start: int, stop: int) -> None:
            rows = start * in_line, min(stop * in_line, n_rows)
            _turn(x, x_stride, transposed, stride, *rows, n_columns)

        pool.split(0, -(-n_rows // in_line), work, operations=float(matrix.size))

    return backward_sum


def padded_stride(lanes: int, item_bytes: int) -> int:
    """Stride between rows of a transposed matrix: an odd number of lines, so that rows do not compete for the
    same places of the cache.
    """
    in_line = LINE_BYTES // item_bytes
    return (-(-lanes // in_line) | 1) * in_line


@compiled
def multiply_blocks(
    out: Array,
    into: Strides,
    left: Array,
    from_left: Strides,
    right: Array,
    from_right: Strides,
    extent: Extent,
    continued: bool,
    flat: bool,
) -> None:
    """Multiplies as `vector_products.multiply`, for one outer step with many rows and steps; by flat tiles if
    asked.

    For compiled code, without checks.
    """
    tile = FLAT_TILE if flat else OWN_TILE
    in_rows = from_left.step_stride == 1
    longest = (_TERMS_BYTES_IN_ROWS if in_rows else _TERMS_BYTES_IN_COLUMNS) // out.itemsize
    most = _evenly(extent.steps, longest, LINE_BYTES // out.itemsize)
    group = _PANEL if in_rows else max(extent.rows, 1)
    for first in range(0, extent.rows, group):
        end = min(first + group, extent.rows)
        for step in range(0, max(extent.steps, 1), most):
            for row in range(first, end, _PANEL):
                multiply(
                    out,
                    Strides(into.at + row * into.row_stride, into.row_stride, 0, 0),
                    left,
                    _shifted(from_left, row, step),
                    right,
                    _shifted(from_right, 0, step),
                    Extent(min(_PANEL, end - row), extent.lanes, 1, min(most, extent.steps - step)),
                    continued or step > 0,
                    NOWHERE,
                    tile,
                )


@compiled
def _evenly(steps: int, longest: int, multiple: int) -> int:
    """Returns the length of blocks of which none is much shorter than others: a short one is slow."""
    blocks = max(-(-steps // longest), 1)
    return max(-(-steps // (blocks * multiple)), 1) * multiple


@compiled
def _shifted(strides: Strides, rows: int, steps: int) -> Strides:
    at = strides.at + rows * strides.row_stride + steps * strides.step_stride
    return Strides(at, strides.row_stride, 0, strides.step_stride)


@compiled
def _rows(
    out: Array,
    left: Array,
    right: Array,
    strides: tuple[int, int, int],
    rows: tuple[int, int],
    size: tuple[int, int],
    accumulate: bool,
    flat: bool,
) -> None:
    """Computes rows `[start, stop)` of a product of so many steps and lanes.

    `strides` are those of `left` between rows and between steps, and of `right` between steps.
    """
    (start, stop), (steps, lanes), (row_stride, step_stride, right_stride) = rows, size, strides
    multiply_blocks(
        out,
        Strides(start * lanes, lanes, 0, 0),
        left,
        Strides(start * row_stride, row_stride, 0, step_stride),
        right,
        Strides(0, 0, 0, right_stride),
        Extent(stop - start, lanes, 1, steps),
        accumulate,
        flat,
    )


@compiled
def _turn(x: Array, x_stride: int, out: Array, out_stride: int, start: int, stop: int, columns: int) -> None:
    """Transposes rows `[start, stop)` of a matrix."""
    transpose(x, start * x_stride, x_stride, out, start, out_stride, stop - start, columns)


def _flat(matrix: Array) -> Array:
    """Returns the memory of a matrix, from the first number to the last, with what lies between its rows."""
    if not matrix.size:
        return matrix.reshape(-1)
    last = sum((n - 1) * stride for n, stride in zip(matrix.shape, matrix.strides, strict=True))
    return np.lib.stride_tricks.as_strided(matrix, (last // matrix.itemsize + 1,), (matrix.itemsize,))
