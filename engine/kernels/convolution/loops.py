"""The compiled loops of convolutions: every place is a matrix product over its patch, examples innermost.

A patch row is contiguous (its columns times their channels), so that a product reads activations and
gradients where they lie; only weights are laid out anew, for the backward pass.

Axes: inputs and their gradient `[row, column, channel, example]`, outputs and theirs `[place row, place
column, filter, example]`, weights `[filter, kernel row, kernel column, channel of the group]`, all in storage
type; sums have the masters' type.

Each sum is one chain of fused multiply-adds: forward in the order of the patch, for an input's gradient over
receivers in ascending rows. Neither tiles, nor vectors, nor cuts, nor threads change its bits.
"""

from __future__ import annotations

from partita.engine.kernels.activations import LOOPS
from partita.engine.kernels.convolution.geometry import Geometry, Receivers, are_joined, inside, receivers
from partita.engine.kernels.kernel import Array
from partita.engine.kernels.tiles.vector_products import NOWHERE, ROWS, Extent, Strides, multiply
from partita.engine.numerics import compiled, downcast, upcast

CACHED_BYTES = 1 << 19
"""Size of the weights that a core's own cache holds beside their inputs. More are taken block by block, each
for a whole row.
"""
ACTIVATIONS = ("linear", "relu", "sigmoid", "tanh")
"""Activations by their numbers in compiled code."""
_LINEAR, _RELU, _SIGMOID, _TANH = (LOOPS[name].finish_into for name in ACTIVATIONS)


@compiled
def forward(
    x: Array,
    weight: Array,
    bias: Array,
    out: Array,
    begin: tuple[int, int],
    activation: int,
    sums: Array,
    g: Geometry,
) -> None:
    """Computes rows of places; `x` and `out` begin at these rows of the input and of the layer.

    `sums` is scratch for a row of places.
    """
    for row in range(out.shape[0]):
        _multiply_row(x, begin[0], weight, begin[1] + row, sums, g)
        for column in range(out.shape[1]):
            finish(activation, sums[column], bias, out[row, column])


@compiled
def finish(activation: int, sums: Array, bias: Array, out: Array) -> None:
    """Computes the activations of one place from its sums, both `[filter, example]`."""
    if activation == 0:
        _LINEAR(sums, bias, out)
    elif activation == 1:
        _RELU(sums, bias, out)
    elif activation == 2:
        _SIGMOID(sums, bias, out)
    else:
        _TANH(sums, bias, out)


@compiled
def _multiply_row(x: Array, window: int, weight: Array, row: int, sums: Array, g: Geometry) -> None:
    """Computes the sums of one row of places, block of weights after block."""
    low, high = inside(row, g.y)
    filters = sums.shape[1] // g.groups
    n_filters = filters if weight.nbytes <= CACHED_BYTES else 4 * ROWS
    n_taps = max(1, CACHED_BYTES // (n_filters * weight[0, 0].nbytes)) if are_joined(g) else 1
    for group in range(g.groups):
        end = (group + 1) * filters
        for f in range(group * filters, end, n_filters):
            for tap in range(low, max(high, low + 1), n_taps):  # on the padding too: sums begin with zero
                rows, taps = (f, min(f + n_filters, end)), (tap, min(tap + n_taps, high))
                top = row * g.y.stride - g.y.before + tap * g.y.dilation - window
                for column in range(sums.shape[0]):
                    _multiply_patch(sums[column], x, weight, (top, column), rows, taps, tap > low, g)


@compiled
def _multiply_patch(
    sums: Array,
    x: Array,
    weight: Array,
    place: tuple[int, int],
    rows: tuple[int, int],
    taps: tuple[int, int],
    continued: bool,
    g: Geometry,
) -> None:
    """Computes sums of some filters of a group at one place, over some rows of its patch.

    `place` is the row of `x` that is the first of these, and the column of the place.
    """
    batch, (_, width, channels, _), group_channels = sums.shape[1], x.shape, weight.shape[3]
    (top, column), group = place, rows[0] // (weight.shape[0] // g.groups)
    patch, patch_row = g.y.size * g.x.size * group_channels, g.x.size * group_channels
    low, high = inside(column, g.x)
    left = column * g.x.stride - g.x.before + low * g.x.dilation
    if are_joined(g):
        outer_steps, steps = taps[1] - taps[0], (high - low) * group_channels
        weight_outer, input_outer = patch_row, g.y.dilation * width * channels * batch
    else:  # one row of the patch at a time
        outer_steps, steps = (taps[1] - taps[0]) * (high - low), group_channels
        weight_outer, input_outer = group_channels, g.x.dilation * channels * batch
    multiply(
        sums.reshape(-1),
        Strides(rows[0] * batch, batch, 0, 0),
        weight.reshape(-1),
        Strides(rows[0] * patch + taps[0] * patch_row + low * group_channels, patch, weight_outer, 1),
        x.reshape(-1),
        Strides(((top * width + left) * channels + group * group_channels) * batch, 0, input_outer, batch),
        Extent(rows[1] - rows[0], batch, outer_steps, steps),
        continued,
        NOWHERE,
    )


@compiled
def pack(weight: Array, packed: Array, g: Geometry, begin: int, end: int) -> None:
    """Lays out weights for the backward pass, tiles `[begin, end)` of channels.

    `packed` is `[tile, kernel row, kernel column, filter of the group, ROWS channels]`; tiles of one group
    after those of another.
    """
    filters, channels = weight.shape[0] // g.groups, weight.shape[3]
    tiles = packed.shape[0] // g.groups
    for tile in range(begin, end):
        group, first = tile // tiles, tile % tiles * ROWS
        for f in range(filters):
            for tap_y in range(weight.shape[1]):
                for tap_x in range(weight.shape[2]):
                    for c in range(first, min(first + ROWS, channels)):
                        value = upcast(weight[group * filters + f, tap_y, tap_x, c])
                        packed[tile, tap_y, tap_x, f, c - first] = value


@compiled
def backward_input(
    out: Array,
    start: int,
    packed: Array,
    grad: Array,
    first: int,
    accumulate: bool,
    sums: Array,
    g: Geometry,
) -> None:
    """Computes rows of the input's gradient from `start` on; `grad` begins at row `first` of places.

    `sums` is scratch for a row of the input.
    """
    for row in range(out.shape[0]):
        grads = out[row]
        for column in range(grads.shape[0]):
            for c in range(grads.shape[1]):
                for e in range(grads.shape[2]):
                    before = upcast(grads[column, c, e])
                    sums[column, c, e] = before if accumulate else type(before)(0)
        _add_rows(sums, packed, grad, first, receivers(start + row, g.y, first, first + grad.shape[0]), g)
        for column in range(grads.shape[0]):
            for c in range(grads.shape[1]):
                for e in range(grads.shape[2]):
                    grads[column, c, e] = downcast(sums[column, c, e], grads[column, c, e])


@compiled
def _add_rows(sums: Array, packed: Array, grad: Array, first: int, rows: Receivers, g: Geometry) -> None:
    """Adds the terms of rows of places to one row of the input, block of weights after block."""
    whole = packed.nbytes <= CACHED_BYTES
    n_tiles, n_rows = (packed.shape[0], max(rows.n_places, 1)) if whole else (1, 1)
    for tile in range(0, packed.shape[0], n_tiles):
        for k in range(0, rows.n_places, n_rows):
            for column in range(sums.shape[0]):
                columns = receivers(column, g.x, 0, grad.shape[1])
                for above in range(k, k + n_rows):
                    place, tap = rows.place + above * rows.step - first, rows.tap - above * rows.tap_step
                    for t in range(tile, tile + n_tiles):
                        _add_place(sums[column], packed, t, tap, grad, place, columns, g)


@compiled
def _add_place(
    sums: Array,
    packed: Array,
    tile: int,
    tap: int,
    grad: Array,
    row: int,
    columns: Receivers,
    g: Geometry,
) -> None:
    """Adds the terms of places in a row of `grad` to a tile of channels of one place of the input."""
    (batch, (_, n_columns, n_filters, _)), channels = (sums.shape[1], grad.shape), sums.shape[0] // g.groups
    filters, tiles = n_filters // g.groups, packed.shape[0] // g.groups
    group, first = tile // tiles, tile % tiles * ROWS
    from_weights = ((tile * g.y.size + tap) * g.x.size + columns.tap) * filters * ROWS
    from_grad = ((row * n_columns + columns.place) * n_filters + group * filters) * batch
    multiply(
        sums.reshape(-1),
        Strides((group * channels + first) * batch, batch, 0, 0),
        packed.reshape(-1),
        Strides(from_weights, 1, -columns.tap_step * filters * ROWS, ROWS),
        grad.reshape(-1),
        Strides(from_grad, 0, columns.step * n_filters * batch, batch),
        Extent(min(ROWS, channels - first), batch, columns.n_places, filters),
        True,
        NOWHERE,
    )
