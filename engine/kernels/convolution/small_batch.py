"""The compiled loops of convolutions over few examples, which fill no vector: filters do, and channels.

Axes are those of `loops`, and so are the sums, to the bit: the same chains, with vectors over the nodes of a
place. There its sums are `[example, node]`, and are transposed when complete.
"""

from __future__ import annotations

from partita.engine.kernels.convolution.geometry import Geometry, are_joined, inside, receivers
from partita.engine.kernels.convolution.loops import CACHED_BYTES, finish
from partita.engine.kernels.kernel import Array
from partita.engine.kernels.tiles.llvm_vectors import lanes_of
from partita.engine.kernels.tiles.transposition import transpose
from partita.engine.kernels.tiles.vector_products import NOWHERE, ROWS, VECTORS, Extent, Strides, multiply
from partita.engine.numerics import ZERO, compiled, downcast, upcast


@compiled
def transpose_weights(weight: Array, transposed: Array, begin: int, end: int) -> None:
    """Transposes taps and channels `[begin, end)` to `[kernel row, kernel column, channel, filter]`."""
    filters, patch = len(weight), weight.size // len(weight)
    flat, out = weight.reshape(-1), transposed.reshape(-1)
    transpose(flat, begin, patch, out, begin * filters, filters, filters, end - begin)


@compiled
def _even(nodes: int, lanes: int) -> int:
    """Nodes to take at a time: whole vectors, no more than a tile has, nearly the same each time."""
    times = -(-nodes // (VECTORS * lanes))
    return -(-nodes // (times * lanes)) * lanes


@compiled
def forward_small_batch(
    x: Array,
    window: int,
    transposed: Array,
    bias: Array,
    out: Array,
    first: int,
    activation: int,
    sums: Array,
    g: Geometry,
) -> None:
    """Computes rows of places from `first` on; `x` begins at row `window` of the input.

    `transposed` is the result of `transpose_weights`; `sums` is scratch, `[1 + place column, example,
    filter]`.
    """
    columns, filters, batch = out.shape[1:]
    size = filters // g.groups
    block = _even(size, lanes_of(sums))
    n_taps = max(1, CACHED_BYTES // (transposed[0].nbytes // filters * block)) if are_joined(g) else 1
    place = sums[columns].reshape(filters, batch)
    for row in range(out.shape[0]):
        low, high = inside(first + row, g.y)
        top = (first + row) * g.y.stride - g.y.before - window
        for group in range(g.groups):
            for f in range(group * size, (group + 1) * size, block):
                nodes = f, min(f + block, (group + 1) * size)
                for tap in range(low, max(high, low + 1), n_taps):  # on the padding too: sums begin with zero
                    rows, above = (tap, min(tap + n_taps, high)), top + tap * g.y.dilation
                    _multiply_rows(sums, columns, x, above, transposed, rows, nodes, tap > low, g)
        for column in range(columns):
            at = column * filters * batch
            transpose(sums.reshape(-1), at, filters, place.reshape(-1), 0, batch, batch, filters)
            finish(activation, place, bias, out[row, column])


@compiled
def _multiply_rows(
    sums: Array,
    columns: int,
    x: Array,
    top: int,
    transposed: Array,
    rows: tuple[int, int],
    nodes: tuple[int, int],
    continued: bool,
    g: Geometry,
) -> None:
    """Computes sums of filters at a row of places over some rows of the patches, the first being `x[top]`."""
    batch = x.shape[3]
    one = batch < ROWS  # examples fill no tile: places do that have the same taps
    column = ZERO
    while column < columns:
        taps, stop = inside(column, g.x), column + 1
        while one and stop < columns and inside(stop, g.x) == taps:
            stop += 1
        for e in range(batch if one else 1):
            n_places = (stop - column) * one
            _multiply_patches(sums, column, e, n_places, x, top, transposed, rows, nodes, taps, continued, g)
        column = stop


@compiled
def _multiply_patches(
    sums: Array,
    column: int,
    example: int,
    n_places: int,
    x: Array,
    top: int,
    transposed: Array,
    rows: tuple[int, int],
    nodes: tuple[int, int],
    taps: tuple[int, int],
    continued: bool,
    g: Geometry,
) -> None:
    """Multiplies for one example at `n_places` from this column on; if that is 0, for all examples at this
    column.
    """
    (_, batch, filters), (_, width, channels, _), group_channels = sums.shape, x.shape, transposed.shape[2]
    (low, high), group, one = taps, nodes[0] // (filters // g.groups), n_places > 0
    place = top * width + column * g.x.stride - g.x.before + low * g.x.dilation
    from_input = (place * channels + group * group_channels) * batch + example
    by_row = g.x.stride * channels * batch if one else 1
    from_weight = (rows[0] * g.x.size + low) * group_channels * filters + nodes[0]
    if are_joined(g):
        outer_steps, steps = rows[1] - rows[0], (high - low) * group_channels
        input_outer, weight_outer = (
            g.y.dilation * width * channels * batch,
            g.x.size * group_channels * filters,
        )
    else:  # one row of the patch at a time
        outer_steps, steps = (high - low) * (rows[1] - rows[0]), group_channels
        input_outer, weight_outer = g.x.dilation * channels * batch, group_channels * filters
    multiply(
        sums.reshape(-1),
        Strides((column * batch + example) * filters + nodes[0], filters * (batch if one else 1), 0, 0),
        x.reshape(-1),
        Strides(from_input, by_row, input_outer, batch),
        transposed.reshape(-1),
        Strides(from_weight, 0, weight_outer, filters),
        Extent(n_places if one else batch, nodes[1] - nodes[0], outer_steps, steps),
        continued,
        NOWHERE,
    )


@compiled
def backward_input_small_batch(
    out: Array,
    start: int,
    weight: Array,
    grad: Array,
    first: int,
    accumulate: bool,
    sums: Array,
    g: Geometry,
) -> None:
    """Computes rows of the input's gradient from `start` on; `grad` begins at row `first` of places.

    `sums` is scratch, `[column, example, channel]`.
    """
    columns, batch, channels = sums.shape
    group_channels = channels // g.groups
    block = _even(group_channels, lanes_of(sums))
    for row in range(out.shape[0]):
        for column in range(columns):
            for c in range(channels):
                for e in range(batch):
                    before = upcast(out[row, column, c, e])
                    sums[column, e, c] = before if accumulate else type(before)(0)
        rows = receivers(start + row, g.y, first, first + grad.shape[0])
        for group in range(g.groups):
            for c in range(group * group_channels, (group + 1) * group_channels, block):
                nodes = c, min(c + block, (group + 1) * group_channels)
                for k in range(rows.n_places):
                    above, tap = rows.place + k * rows.step - first, rows.tap - k * rows.tap_step
                    _add_row(sums, weight, tap, nodes, grad, above, g)
        for column in range(columns):
            for c in range(channels):
                for e in range(batch):
                    out[row, column, c, e] = downcast(sums[column, e, c], out[row, column, c, e])


@compiled
def _add_row(
    sums: Array, weight: Array, tap: int, nodes: tuple[int, int], grad: Array, row: int, g: Geometry
) -> None:
    """Adds the terms of a row of `grad` to some channels of a row of the input."""
    (columns, batch, channels), (_, n_places, n_filters, _) = sums.shape, grad.shape
    group_channels, filters = channels // g.groups, n_filters // g.groups
    group, patch = nodes[0] // group_channels, g.y.size * g.x.size * group_channels
    begin = group * filters * patch + tap * g.x.size * group_channels + nodes[0] - group * group_channels
    for column in range(columns):
        above = receivers(column, g.x, 0, n_places)
        from_grad = ((row * n_places + above.place) * n_filters + group * filters) * batch
        multiply(
            sums.reshape(-1),
            Strides(column * batch * channels + nodes[0], channels, 0, 0),
            grad.reshape(-1),
            Strides(from_grad, 1, above.step * n_filters * batch, batch),
            weight.reshape(-1),
            Strides(begin + above.tap * group_channels, 0, -above.tap_step * group_channels, patch),
            Extent(batch, nodes[1] - nodes[0], above.n_places, filters),
            True,
            NOWHERE,
        )
