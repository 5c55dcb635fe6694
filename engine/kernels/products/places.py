"""The compiled loops of one matrix times the matrices of many places, `[place, term, example]`, and of its
gradient, the sum over places.

A place has too few examples for large tiles. So the columns of several places are laid side by side in
scratch that stays in the cache, multiplied, and written from there to where they belong: no other copy is
made.

Every element is a chain of fused multiply-adds over terms in ascending order, for the gradient over places,
then examples: neither blocks nor threads change its bits, which are those of one product by `tiles`.
"""

from __future__ import annotations

from typing import Final

from partita.engine.kernels.kernel import Array
from partita.engine.kernels.products.tiles import multiply_blocks
from partita.engine.kernels.tiles.forms import OWN_TILE
from partita.engine.kernels.tiles.runs import Rows, add_rows, add_terms, copy_rows
from partita.engine.kernels.tiles.transposition import transpose
from partita.engine.kernels.tiles.vector_products import NOWHERE, Extent, Strides, multiply
from partita.engine.numerics import compiled, compiled_reassociating

PANEL: Final = 96
"""Rows of the matrix whose products are written at a time."""
_COLUMNS_BYTES: Final = 384 << 10
_FEWEST, _MOST = 48, 192
"""Columns that are laid side by side: as many bytes as a second-level cache holds, within these bounds."""
STEPS: Final = 512
"""Terms of a gradient that are added at a time, at least: examples of several places."""


def places_beside(terms: int, examples: int, item_bytes: int, places: int, threads: int) -> int:
    """Returns how many of so many places have their columns, of so many terms, laid side by side.

    Blocks of places are nearly equal, and each thread has as many of them.
    """
    most = places_in(min(max(_COLUMNS_BYTES // (terms * item_bytes), _FEWEST), _MOST), examples)
    rounds = -(-places // (most * threads))
    return max(-(-places // (rounds * threads)), 1)


def places_in(numbers: int, examples: int) -> int:
    """Returns the fewest places with so many columns."""
    return max(-(-numbers // max(examples, 1)), 1)


@compiled
def multiply_places(
    matrix: Array,
    x: Array,
    out: Array,
    bias: Array,
    scratch: tuple[Array, Array],
    strides: tuple[int, int],
    span: tuple[int, int],
    accumulate: bool,
) -> None:
    """Writes `out[place] = matrix @ x[place] + bias` for places `[start, stop)`, of one block.

    Args:
        matrix: `[m, k]`, flat, its rows a stride apart.
        x: `[place, k, example]`, C-contiguous.
        out: `[place, m, example]`, likewise.
        bias: `[m]`, or `[0]` for none.
        scratch: for the columns of `x`, `[k, stride]`, and for a panel of products, `[PANEL, stride]`; flat.
        strides: of the rows of `matrix`, and of scratch.
        span: the places; not more than scratch has columns for.
        accumulate: whether to add to what `out` holds.
    """
    (columns, sums), (row_stride, stride), (start, stop) = scratch, strides, span
    k, examples, m = x.shape[1], x.shape[2], out.shape[1]
    source = x.reshape(-1)
    for place in range(start, stop):
        into, given = Rows((place - start) * examples, stride), Rows(place * k * examples, examples)
        copy_rows(columns, into, source, given, bias, 0, k, examples)
    for first in range(0, m, PANEL):
        rows = min(PANEL, m - first)
        multiply_blocks(
            sums,
            Strides(0, stride, 0, 0),
            matrix,
            Strides(first * row_stride, row_stride, 0, 1),
            columns,
            Strides(0, 0, 0, stride),
            Extent(rows, (stop - start) * examples, 1, k),
            False,
            False,
        )
        places, size = (start, stop, stride), (m, examples)
        _write(out.reshape(-1), bias, sums, places, size, (first, rows), accumulate)


@compiled
def _write(
    out: Array,
    bias: Array,
    sums: Array,
    places: tuple[int, int, int],
    size: tuple[int, int],
    panel: tuple[int, int],
    accumulate: bool,
) -> None:
    """Writes a panel of products of places `[start, stop)`, from where they lie in scratch, a stride apart.

    Args:
        out: `[place, m, example]`, flat.
        bias: `[m]`, or `[0]` for none.
        sums: the products, `[row, stride]`, flat.
        places: start, stop and the stride.
        size: `(m, examples)`.
        panel: first row and number of rows.
        accumulate: whether to add to what `out` holds.
    """
    (start, stop, stride), (m, examples), (first, rows) = places, size, panel
    for place in range(start, stop):
        into = Rows((place * m + first) * examples, examples)
        given = Rows((place - start) * examples, stride)
        if accumulate:
            add_rows(out, into, sums, given, bias, 0, rows, examples)
        elif len(bias):
            add_terms(out, into, sums, given, bias, first, rows, examples)
        else:
            copy_rows(out, into, sums, given, bias, 0, rows, examples)


@compiled
def transpose_places(x: Array, out: Array, stride: int, first: int, span: tuple[int, int]) -> None:
    """Transposes places `[start, stop)` of `x`, `[place, k, example]`, into rows of examples, a stride apart.

    Row 0 of `out`, which is flat, is the first example of place `first`.
    """
    k, examples = x.shape[1], x.shape[2]
    flat = x.reshape(-1)
    for place in range(*span):
        transpose(
            flat,
            place * k * examples,
            examples,
            out,
            (place - first) * examples * stride,
            stride,
            k,
            examples,
        )


@compiled
def add_products(
    grad: Array,
    examples: Array,
    out: Array,
    stride: int,
    places: tuple[int, int],
    rows: tuple[int, int],
    continued: bool,
) -> None:
    """Writes rows `[start, stop)` of the sum of `grad[place] @ x[place].T` over places.

    Args:
        grad: `[place, m, example]`, C-contiguous.
        examples: `x` of these places as `transpose_places` lays it out.
        out: `[m, k]`, C-contiguous.
        stride: between rows of `examples`.
        places: `[first, end)`.
        rows: of `out`.
        continued: whether the sums begin with what `out` holds.
    """
    (first, end), (start, stop), (m, k), batch = places, rows, out.shape, grad.shape[2]
    left, sums = grad.reshape(-1), out.reshape(-1)
    for row in range(start, stop, PANEL):
        multiply(
            sums,
            Strides(row * k, k, 0, 0),
            left,
            Strides((first * m + row) * batch, batch, m * batch, 1),
            examples,
            Strides(0, 0, batch * stride, stride),
            Extent(min(PANEL, stop - row), k, end - first, batch),
            continued,
            NOWHERE,
            OWN_TILE,
        )


@compiled_reassociating
def add_columns(grad: Array, out: Array, rows: tuple[int, int], continued: bool) -> None:
    """Writes rows `[start, stop)` of the sum of `grad`, `[place, m, example]`, over places and examples."""
    for row in range(*rows):
        if not continued:
            out[row] = 0
    for place in range(grad.shape[0]):
        for row in range(*rows):
            total = grad[place, row, 0]
            for e in range(1, grad.shape[2]):
                total += grad[place, row, e]
            out[row] += total
