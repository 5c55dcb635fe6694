"""The compiled loops of a convolution's gradient, summed over places and examples.

It is a matrix product whose sums run over the examples, which lie innermost. So one row of errors at a time
is turned, `[place column, example, filter]`, and each number of the input is multiplied by a vector of
filters: as on the way up, the sums stay in registers. Axes are those of `convolution_loops`.

Each sum is a chain of fused multiply-adds over places in ascending rows; threads divide the filters. The bits
depend on which rows a machine has, and on nothing else.
"""

from __future__ import annotations

from typing import Any

from partita.engine.kernels.convolution.geometry import Geometry, are_joined, inside
from partita.engine.kernels.kernel import Array
from partita.engine.kernels.tiles.transposition import transpose
from partita.engine.kernels.tiles.vector_products import NOWHERE, Extent, Walk, multiply
from partita.engine.numerics import compiled, compiled_reassociating, upcast


@compiled
def find_weight_gradient(
    x: Array,
    window: int,
    delta: Array,
    first: int,
    turned: Array,
    sums: Array,
    out: Array,
    begin: int,
    end: int,
    g: Geometry,
) -> None:
    """Of the weights of filters `[begin, end)`, all of one group, over places from row `first` on.

    `out` is `[filter, tap and channel]`; `turned`, `[place column, example, filter]`, and `sums`, `[tap and
    channel, filter]`, are scratch.
    """
    sums[:, begin:end] = 0
    for row in range(delta.shape[0]):
        _turn(delta[row], turned, begin, end)
        low, high = inside(first + row, g.y)
        top = (first + row) * g.y.stride - g.y.before - window
        for tap in range(low, high):
            _add_products(sums, x, top + tap * g.y.dilation, tap, turned, begin, end, g)
    taps, filters = sums.shape
    flat, turned_back = sums.reshape(-1), out.reshape(-1)
    transpose(flat, begin, filters, turned_back, begin * taps, taps, taps, end - begin)


@compiled
def _turn(delta: Array, turned: Array, begin: int, end: int) -> None:
    """`[column, filter, example]` as `[column, example, filter]`, upcast."""
    columns, filters, batch = delta.shape
    errors, out = delta.reshape(-1), turned.reshape(-1)
    for column in range(columns):
        place = column * filters * batch
        transpose(errors, place + begin * batch, batch, out, place + begin, filters, end - begin, batch)


@compiled
def _add_products(
    sums: Array, x: Array, row: int, tap: int, turned: Array, begin: int, end: int, g: Geometry
) -> None:
    """Adds the products of one row of the input with the errors of one row of places."""
    flat, inputs, errors = sums.reshape(-1), x.reshape(-1), turned.reshape(-1)
    (_, width, channels, batch), (columns, _, filters) = x.shape, turned.shape
    heard = channels // g.groups
    group = begin // (filters // g.groups)
    joined = are_joined(g)
    column = 0
    while column < columns:
        low, high = inside(column, g.x)
        stop = column + 1
        while stop < columns and inside(stop, g.x) == (low, high):
            stop += 1
        from_errors = Walk(column * batch * filters + begin, 0, batch * filters, filters)
        for tap_x in range(low, min(high, low + 1) if joined else high):
            place = row * width + column * g.x.stride - g.x.before + tap_x * g.x.dilation
            from_inputs = Walk(
                (place * channels + group * heard) * batch, batch, g.x.stride * channels * batch, 1
            )
            into = Walk((tap * g.x.size + tap_x) * heard * filters + begin, filters, 0, 0)
            extent = Extent((high - low if joined else 1) * heard, end - begin, stop - column, batch)
            multiply(flat, into, inputs, from_inputs, errors, from_errors, extent, True, NOWHERE)
        column = stop


@compiled
def add_bias_gradient(delta: Array, totals: Array) -> None:
    """Adds the errors of all places and examples of each filter; `totals` is float64 `[filter]`."""
    for row in range(delta.shape[0]):
        for column in range(delta.shape[1]):
            for f in range(delta.shape[2]):
                totals[f] += _sum(delta[row, column, f])


@compiled_reassociating
def _sum(errors: Array) -> Any:
    total = upcast(errors[0])
    for e in range(1, len(errors)):
        total += upcast(errors[e])
    return total
