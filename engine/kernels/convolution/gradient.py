"""The compiled loops of a convolution's weight gradient, summed over places and examples.

The gradient is a matrix product whose sums run over the examples, which lie innermost. So one row of output
gradients at a time is transposed, `[place column, example, filter]`, and each number of the input is
multiplied by a vector of filters: as in the forward pass, the sums stay in registers. Axes are those of
`loops`.

Each sum is a chain of fused multiply-adds over places in ascending rows; threads divide the filters. The bits
depend on which rows a machine has, and on nothing else.
"""

from __future__ import annotations

from typing import Any

from partita.engine.kernels.kernel import Array
from partita.engine.kernels.patches import PatchGeometry, inside
from partita.engine.kernels.tiles.forms import Tile
from partita.engine.kernels.tiles.transposition import transpose
from partita.engine.kernels.tiles.vector_products import NOWHERE, Extent, Strides, multiply
from partita.engine.numerics import compiled, compiled_reassociating, upcast


@compiled
def backward_weight(
    x: Array,
    grad: Array,
    starts: tuple[int, int],
    transposed: Array,
    sums: Array,
    out: Array,
    filters: tuple[int, int],
    g: PatchGeometry,
    tile: Tile,
) -> None:
    """Computes the gradient of filters `[begin, end)` over all places of `grad`.

    `x` and `grad` begin at rows `starts` of the input and of the layer. `out` is `[filter, tap and channel]`;
    `transposed`, `[place column, example, filter]`, and `sums`, `[tap and channel, filter]`, are scratch.
    """
    (begin, end), (window, first) = filters, starts
    sums[:, begin:end] = 0
    for row in range(grad.shape[0]):
        _transpose(grad[row], transposed, begin, end)
        top = (first + row) * g.stride_y - g.before_y
        low, high = inside(top, g.size_y, g.height)
        for tap in range(low, high):
            _add_products(sums, x, top + tap - window, tap, transposed, filters, g, tile)
    taps, n_filters = sums.shape
    flat, turned_back = sums.reshape(-1), out.reshape(-1)
    transpose(flat, begin, n_filters, turned_back, begin * taps, taps, taps, end - begin)


@compiled
def _transpose(grad: Array, transposed: Array, begin: int, end: int) -> None:
    """Upcasts `[column, filter, example]` to `[column, example, filter]`."""
    columns, filters, batch = grad.shape
    flat, out = grad.reshape(-1), transposed.reshape(-1)
    for column in range(columns):
        place = column * filters * batch
        transpose(flat, place + begin * batch, batch, out, place + begin, filters, end - begin, batch)


@compiled
def _add_products(
    sums: Array,
    x: Array,
    row: int,
    tap: int,
    transposed: Array,
    filters: tuple[int, int],
    g: PatchGeometry,
    tile: Tile,
) -> None:
    """Adds the products of one row of the input with the gradients of one row of places."""
    flat, inputs, grads = sums.reshape(-1), x.reshape(-1), transposed.reshape(-1)
    (_, width, channels, batch), (columns, _, n_filters) = x.shape, transposed.shape
    (begin, end), column = filters, 0
    while column < columns:
        left = column * g.stride_x - g.before_x
        low, high = inside(left, g.size_x, g.width)
        stop = column + 1
        while stop < columns and inside(stop * g.stride_x - g.before_x, g.size_x, g.width) == (low, high):
            stop += 1
        if low < high:
            place = (row * width + left + low) * channels * batch
            multiply(
                flat,
                Strides((tap * g.size_x + low) * channels * n_filters + begin, n_filters, 0, 0),
                inputs,
                Strides(place, batch, g.stride_x * channels * batch, 1),
                grads,
                Strides(column * batch * n_filters + begin, 0, batch * n_filters, n_filters),
                Extent((high - low) * channels, end - begin, stop - column, batch),
                True,
                NOWHERE,
                tile,
            )
        column = stop


@compiled
def accumulate_bias(grad: Array, totals: Array) -> None:
    """Adds the gradients of all places and examples of each filter; `totals` is float64 `[filter]`."""
    for row in range(grad.shape[0]):
        for column in range(grad.shape[1]):
            for f in range(grad.shape[2]):
                totals[f] += _sum(grad[row, column, f])


@compiled_reassociating
def _sum(grad: Array) -> Any:
    total = upcast(grad[0])
    for e in range(1, len(grad)):
        total += upcast(grad[e])
    return total
