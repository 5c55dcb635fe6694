"""The compiled loops of convolutions: every place is a matrix product over its patch, examples innermost.

A patch row is contiguous (its columns times their channels), so that a product reads states and errors where
they lie; only weights are laid out anew, for the way down.

Axes: inputs and their errors `[row, column, channel, example]`, states and theirs `[place row, place column,
filter, example]`, weights `[filter, kernel row, kernel column, channel of the group]`. All are as they are
stored; sums are of the masters' type.

Each sum is one chain of fused multiply-adds: of a state in the order of the patch, of an input's error over
receivers in ascending rows. Neither tiles, nor vectors, nor cuts, nor threads change its bits.
"""

from __future__ import annotations

from partita.engine.kernels.activations import LOOPS
from partita.engine.kernels.convolution_geometry import Geometry, Receivers, inside, receivers
from partita.engine.kernels.kernel import Array
from partita.engine.kernels.vector_products import NOWHERE, ROWS, Extent, Walk, multiply
from partita.engine.numerics import compiled, narrow, widen

ACTIVATIONS = ("linear", "relu", "sigmoid", "tanh")
"""In the order of their numbers in compiled code."""
_LINEAR, _RELU, _SIGMOID, _TANH = (LOOPS[name].finish_into for name in ACTIVATIONS)


@compiled
def find_states(
    x: Array,
    window: int,
    weight: Array,
    bias: Array,
    state: Array,
    first: int,
    activation: int,
    sums: Array,
    g: Geometry,
) -> None:
    """Rows of places from `first` on; `x` begins at row `window` of the input.

    `sums` is scratch, `[filter, example]`.
    """
    for row in range(state.shape[0]):
        low, high = inside(first + row, g.y)
        top = (first + row) * g.y.stride - g.y.before - window
        for column in range(state.shape[1]):
            _multiply_patch(sums, x, weight, top, low, high, column, g)
            if activation == 0:
                _LINEAR(sums, bias, state[row, column])
            elif activation == 1:
                _RELU(sums, bias, state[row, column])
            elif activation == 2:
                _SIGMOID(sums, bias, state[row, column])
            else:
                _TANH(sums, bias, state[row, column])


@compiled
def _multiply_patch(
    sums: Array, x: Array, weight: Array, top: int, low: int, high: int, column: int, g: Geometry
) -> None:
    """The sums of one place: taps `[low, high)` of a patch that begins at row `top` of `x`."""
    flat, inputs, weights = sums.reshape(-1), x.reshape(-1), weight.reshape(-1)
    (filters, batch), (_, width, channels, _) = sums.shape, x.shape
    patch, column_weights = weight.shape[1] * weight.shape[2] * weight.shape[3], weight.shape[3]
    left, right = inside(column, g.x)
    begin = column * g.x.stride - g.x.before + left * g.x.dilation
    if g.groups == 1 and g.x.dilation == 1:  # the columns of a patch row lie one after another
        from_weight = Walk((low * g.x.size + left) * column_weights, patch, g.x.size * column_weights, 1)
        from_inputs = Walk(
            ((top + low * g.y.dilation) * width + begin) * channels * batch,
            0,
            g.y.dilation * width * channels * batch,
            batch,
        )
        extent = Extent(filters, batch, high - low, (right - left) * channels)
        multiply(
            flat, Walk(0, batch, 0, 0), weights, from_weight, inputs, from_inputs, extent, False, NOWHERE
        )
        return
    for group in range(g.groups):
        first, n_filters = group * (filters // g.groups), filters // g.groups
        for tap in range(low, max(high, low + 1)):  # a patch on the padding still begins its sums with zero
            from_weight = Walk(
                first * patch + (tap * g.x.size + left) * column_weights, patch, column_weights, 1
            )
            from_inputs = Walk(
                (((top + tap * g.y.dilation) * width + begin) * channels + group * column_weights) * batch,
                0,
                g.x.dilation * channels * batch,
                batch,
            )
            extent = Extent(n_filters, batch, right - left if tap < high else 0, column_weights)
            into = Walk(first * batch, batch, 0, 0)
            multiply(flat, into, weights, from_weight, inputs, from_inputs, extent, tap > low, NOWHERE)


@compiled
def pack(weight: Array, packed: Array, g: Geometry, begin: int, end: int) -> None:
    """Weights as the way down reads them, tiles `[begin, end)` of channels.

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
                        value = widen(weight[group * filters + f, tap_y, tap_x, c])
                        packed[tile, tap_y, tap_x, f, c - first] = value


@compiled
def find_errors(
    out: Array,
    start: int,
    packed: Array,
    delta: Array,
    first: int,
    accumulate: bool,
    sums: Array,
    g: Geometry,
) -> None:
    """Rows of the input from `start` on; `delta` begins at row `first` of places.

    `sums` is scratch, `[channel, example]`.
    """
    batch = out.shape[3]
    for row in range(out.shape[0]):
        rows = receivers(start + row, g.y, first, first + delta.shape[0])
        for column in range(out.shape[1]):
            place = out[row, column]
            for c in range(place.shape[0]):
                for e in range(batch):
                    sums[c, e] = widen(place[c, e]) if accumulate else type(sums[c, e])(0)
            columns = receivers(column, g.x, 0, delta.shape[1])
            for k in range(rows.n_places):
                above = rows.place + k * rows.step - first
                _add_row(sums, packed, rows.tap - k * rows.tap_step, delta, above, columns, g)
            for c in range(place.shape[0]):
                for e in range(batch):
                    place[c, e] = narrow(sums[c, e], place[c, e])


@compiled
def _add_row(
    sums: Array, packed: Array, tap: int, delta: Array, row: int, columns: Receivers, g: Geometry
) -> None:
    """Adds what the places in these columns of a row of `delta` return to one place of the input."""
    flat, weights, errors = sums.reshape(-1), packed.reshape(-1), delta.reshape(-1)
    batch, n_columns, n_filters = sums.shape[1], delta.shape[1], delta.shape[2]
    filters, channels, tiles = n_filters // g.groups, sums.shape[0] // g.groups, packed.shape[0] // g.groups
    for group in range(g.groups):
        from_errors = Walk(
            ((row * n_columns + columns.place) * n_filters + group * filters) * batch,
            0,
            columns.step * n_filters * batch,
            batch,
        )
        for tile in range(tiles):
            begin = ((group * tiles + tile) * g.y.size + tap) * g.x.size + columns.tap
            from_weights = Walk(begin * filters * ROWS, 1, -columns.tap_step * filters * ROWS, ROWS)
            into = Walk((group * channels + tile * ROWS) * batch, batch, 0, 0)
            extent = Extent(min(ROWS, channels - tile * ROWS), batch, columns.n_places, filters)
            multiply(flat, into, weights, from_weights, errors, from_errors, extent, True, NOWHERE)
