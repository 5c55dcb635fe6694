"""The compiled loops of convolutions: every place is a matrix product over its patch, examples innermost.

A patch row is contiguous (its columns times their channels), so that a product reads activations and
gradients where they lie; only weights are laid out anew, for the backward pass.

Axes: inputs and their gradient `[row, column, channel, example]`, outputs and theirs `[place row, place
column, filter, example]`, weights `[filter, kernel row, kernel column, channel]`, all in storage
type; sums have the masters' type.

Each sum is one chain of fused multiply-adds: forward in the order of the patch, for an input's gradient over
receivers in ascending rows. Neither tiles, nor vectors, nor cuts, nor threads change its bits.
"""

from __future__ import annotations

from partita.engine.kernels.activations import LOOPS
from partita.engine.kernels.kernel import Array
from partita.engine.kernels.patches import PatchGeometry, inside, receivers, receivers_on
from partita.engine.kernels.tiles.forms import Tile
from partita.engine.kernels.tiles.vector_products import NOWHERE, Extent, Strides, multiply
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
    g: PatchGeometry,
    tile: Tile,
) -> None:
    """Computes rows of places; `x` and `out` begin at these rows of the input and of the layer.

    `sums` is scratch for a row of places.
    """
    for row in range(out.shape[0]):
        _multiply_row(x, begin[0], weight, begin[1] + row, sums, g, tile)
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
def _multiply_row(
    x: Array, window: int, weight: Array, row: int, sums: Array, g: PatchGeometry, tile: Tile
) -> None:
    """Computes the sums of one row of places, block of weights after block."""
    filters, top = sums.shape[1], row * g.stride_y - g.before_y
    low, high = inside(top, g.size_y, g.height)
    n_filters = filters if weight.nbytes <= CACHED_BYTES else 4 * tile.rows
    n_taps = max(1, CACHED_BYTES // (n_filters * weight[0, 0].nbytes))
    for f in range(0, filters, n_filters):
        for tap in range(low, max(high, low + 1), n_taps):  # on the padding too: sums begin with zero
            rows, taps = (f, min(f + n_filters, filters)), (tap, min(tap + n_taps, high))
            for column in range(sums.shape[0]):
                place = top + tap - window, column
                _multiply_patch(sums[column], x, weight, place, rows, taps, tap > low, g, tile)


@compiled
def _multiply_patch(
    sums: Array,
    x: Array,
    weight: Array,
    place: tuple[int, int],
    rows: tuple[int, int],
    taps: tuple[int, int],
    continued: bool,
    g: PatchGeometry,
    tile: Tile,
) -> None:
    """Computes sums of some filters at one place, over some rows of its patch.

    `place` is the row of `x` that is the first of these, and the column of the place.
    """
    (top, column), (_, width, channels, batch) = place, x.shape
    patch_row = g.size_x * channels
    left = column * g.stride_x - g.before_x
    low, high = inside(left, g.size_x, g.width)
    from_weight = (rows[0] * g.size_y + taps[0]) * patch_row + low * channels
    multiply(
        sums.reshape(-1),
        Strides(rows[0] * batch, batch, 0, 0),
        weight.reshape(-1),
        Strides(from_weight, g.size_y * patch_row, patch_row, 1),
        x.reshape(-1),
        Strides((top * width + left + low) * channels * batch, 0, width * channels * batch, batch),
        Extent(rows[1] - rows[0], batch, taps[1] - taps[0], (high - low) * channels),
        continued,
        NOWHERE,
        tile,
    )


@compiled
def pack(weight: Array, packed: Array, begin: int, end: int) -> None:
    """Lays out weights for the backward pass, tiles `[begin, end)` of channels.

    `packed` is `[tile, kernel row, kernel column, filter, channel of the tile]`.
    """
    (filters, height, width, channels), n = weight.shape, packed.shape[4]
    for tile in range(begin, end):
        for f in range(filters):
            for tap_y in range(height):
                for tap_x in range(width):
                    for c in range(tile * n, min((tile + 1) * n, channels)):
                        packed[tile, tap_y, tap_x, f, c - tile * n] = upcast(weight[f, tap_y, tap_x, c])


@compiled
def backward_input(
    out: Array,
    start: int,
    packed: Array,
    grad: Array,
    first: int,
    accumulate: bool,
    sums: Array,
    g: PatchGeometry,
    tile: Tile,
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
        _add_rows(sums, packed, grad, first, start + row, g, tile)
        for column in range(grads.shape[0]):
            for c in range(grads.shape[1]):
                for e in range(grads.shape[2]):
                    grads[column, c, e] = downcast(sums[column, c, e], grads[column, c, e])


@compiled
def _add_rows(
    sums: Array, packed: Array, grad: Array, first: int, row: int, g: PatchGeometry, tile: Tile
) -> None:
    """Adds the terms of rows of places to one row of the input, block of weights after block."""
    low, high = receivers(row, g, first, first + grad.shape[0])
    n_places, whole = max(high - low, 0), packed.nbytes <= CACHED_BYTES
    n_tiles, n_rows = (packed.shape[0], max(n_places, 1)) if whole else (1, 1)
    for block in range(0, packed.shape[0], n_tiles):
        for k in range(low, low + n_places, n_rows):
            for column in range(sums.shape[0]):
                columns = receivers_on(column, g.size_x, g.stride_x, g.before_x, 0, grad.shape[1])
                tap = column + g.before_x - columns[0] * g.stride_x
                for place in range(k, k + n_rows):
                    taps = row + g.before_y - place * g.stride_y, tap
                    for t in range(block, block + n_tiles):
                        _add_place(sums[column], packed, t, taps, grad, place - first, columns, g, tile)


@compiled
def _add_place(
    sums: Array,
    packed: Array,
    number: int,
    taps: tuple[int, int],
    grad: Array,
    row: int,
    columns: tuple[int, int],
    g: PatchGeometry,
    tile: Tile,
) -> None:
    """Adds the terms of places in a row of `grad` to tile `number` of the channels of one place of the input,
    which is number `taps` of the first patch.
    """
    (channels, batch), (_, n_columns, filters, _), n = sums.shape, grad.shape, packed.shape[4]
    from_weights = ((number * g.size_y + taps[0]) * g.size_x + taps[1]) * filters * n
    multiply(
        sums.reshape(-1),
        Strides(number * n * batch, batch, 0, 0),
        packed.reshape(-1),
        Strides(from_weights, 1, -g.stride_x * filters * n, n),
        grad.reshape(-1),
        Strides((row * n_columns + columns[0]) * filters * batch, 0, filters * batch, batch),
        Extent(min(n, channels - number * n), batch, max(columns[1] - columns[0], 0), filters),
        True,
        NOWHERE,
        tile,
    )
