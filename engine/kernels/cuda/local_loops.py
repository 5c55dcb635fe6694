"""Layers whose nodes take weighted sums of patches, no two places sharing a weight: kernels for a GPU.

A thread has a few examples of one node, those of adjacent threads being adjacent, so that they share the
weight and read contiguous memory. No thread adds to what another writes.

Axes: sums and their gradient `[place row, place column, filter, example]`, inputs and theirs `[row, column *
channel, example]`, weights `[place row, place column, filter, patch row, patch column * channel]`. Sums have
the type `R`; operands have that type, or are bfloat16's bits.

A sum is a chain of fused multiply-adds in the order of the CPU's `local_loops`. Forward: bias, then inputs in
the order of the patch. For the gradient of an input: receivers in ascending rows, then columns, then filters.
For that of a weight: examples.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from partita.engine.kernels.patches import PatchGeometry, inside, receivers
from partita.engine.numerics import downcast, fma, upcast
from partita.engine.numerics.cuda import cuda, kernel, on_device, strided

TILE = 4
"""Examples, or filters, of a thread."""
R = np.float32


class Loops(NamedTuple):
    """The kernels, for a type of sums."""

    sums: Any
    """`(x, weight, bias, out, first, window, g)`: places from row `first` on; `x` begins at row `window`."""
    errors: Any
    """`(out, weight, grad, rows, window, places, accumulate, g)`: rows `[start, stop)` of the input, in
    `out`, which begins at row `window`, from rows `[first, last)` of places."""
    gradient: Any
    """`(x, grad, out, first, window, g)`: as `sums`."""


@lru_cache(maxsize=2)
def loops(dtype: np.dtype[Any]) -> Loops:
    """The kernels whose sums are of this type."""
    names = {
        "R": dtype.type,
        "inside": on_device(inside.py_func),  # type: ignore[attr-defined]
        "receivers": on_device(receivers.py_func),  # type: ignore[attr-defined]
    }
    return Loops(kernel(_sums, **names), kernel(_errors, **names), kernel(_gradient, **names))


def threads(n_nodes: int, n: int) -> int:
    """Number of threads with something to do, if each takes a tile of `n` examples or filters of a node."""
    return n_nodes * -(-n // TILE)


def _sums(x: Any, weight: Any, bias: Any, out: Any, first: int, window: int, g: PatchGeometry) -> None:
    rows, columns, filters, batch = out.shape
    lanes = (batch + TILE - 1) // TILE
    for i in strided(rows * columns * filters * lanes):
        lane, node = i % lanes, i // lanes
        row, column, f = node // filters // columns, node // filters % columns, node % filters
        top, left = (first + row) * g.stride_y - g.before_y, column * g.stride_x - g.before_x
        low_y, high_y = inside(top, g.size_y, g.height)
        low_x, high_x = inside(left, g.size_x, g.width)
        sums = cuda.local.array(TILE, R)
        for t in range(TILE):
            sums[t] = upcast(bias[node])
        for y in range(low_y, high_y):
            for k in range(low_x * g.channels, high_x * g.channels):
                w = upcast(weight[row, column, f, y, k])
                for t in range(TILE):
                    e = lane + t * lanes
                    if e < batch:
                        value = upcast(x[top + y - window, left * g.channels + k, e])
                        sums[t] = fma(w, value, sums[t])
        for t in range(TILE):
            e = lane + t * lanes
            if e < batch:
                out[row, column, f, e] = sums[t]


def _errors(
    out: Any,
    weight: Any,
    grad: Any,
    rows: tuple[int, int],
    window: int,
    places: tuple[int, int],
    accumulate: bool,
    g: PatchGeometry,
) -> None:
    cells, batch, columns, filters = out.shape[1], out.shape[2], grad.shape[1], grad.shape[2]
    lanes = (batch + TILE - 1) // TILE
    for i in strided((rows[1] - rows[0]) * cells * lanes):
        lane, cell, y = i % lanes, i // lanes % cells, rows[0] + i // lanes // cells
        reach = cell // g.channels + g.before_x
        low_row, high_row = receivers(y, g, places[0], places[1])
        low_column = max(0, -((g.size_x - 1 - reach) // g.stride_x))
        high_column = min(columns, reach // g.stride_x + 1)
        sums = cuda.local.array(TILE, R)
        for t in range(TILE):
            e = lane + t * lanes
            sums[t] = upcast(out[y - window, cell, e]) if accumulate and e < batch else R(0)
        for row in range(low_row, high_row):
            tap_y = y + g.before_y - row * g.stride_y
            for column in range(low_column, high_column):
                k = (reach - column * g.stride_x) * g.channels + cell % g.channels
                for f in range(filters):
                    w = upcast(weight[row - places[0], column, f, tap_y, k])
                    for t in range(TILE):
                        e = lane + t * lanes
                        if e < batch:
                            value = upcast(grad[row - places[0], column, f, e])
                            sums[t] = fma(w, value, sums[t])
        for t in range(TILE):
            e = lane + t * lanes
            if e < batch:
                out[y - window, cell, e] = downcast(sums[t], out[y - window, cell, e])


def _gradient(x: Any, grad: Any, out: Any, first: int, window: int, g: PatchGeometry) -> None:
    rows, columns, filters, size_y, run = out.shape
    tiles = (filters + TILE - 1) // TILE
    for i in strided(rows * columns * tiles * size_y * run):
        k, y, rest = i % run, i // run % size_y, i // run // size_y
        tile, column, row = rest % tiles, rest // tiles % columns, rest // tiles // columns
        height, width = (first + row) * g.stride_y - g.before_y + y, column * g.stride_x - g.before_x
        sums = cuda.local.array(TILE, R)
        for t in range(TILE):
            sums[t] = R(0)
        if 0 <= height < g.height and 0 <= width + k // g.channels < g.width:
            for e in range(grad.shape[3]):
                value = upcast(x[height - window, width * g.channels + k, e])
                for t in range(TILE):
                    f = tile * TILE + t
                    if f < filters:
                        sums[t] = fma(upcast(grad[row, column, f, e]), value, sums[t])
        for t in range(TILE):
            f = tile * TILE + t
            if f < filters:
                out[row, column, f, y, k] = sums[t]
