"""Locally connected layers: filters on patches of a picture, no two places sharing a weight.

Every place of the grid is a small matrix product over the examples of its patch. A patch row is contiguous
(its columns times their channels), so each product runs over runs of rows `[inputs, example]`, four outputs
by four inputs at a time, examples innermost.

Axes: state and errors `[place row, place column, filter, example]`, inputs `[row, column * channel,
example]`, weights `[place row, place column, filter, patch row, patch column * channel]`.

A sum is a chain of fused multiply-adds in a fixed order: bias, then inputs in the order of the patch; for the
errors of an input, receivers in ascending rows. Neither unrolling, nor vectors, nor cuts, nor threads change
the bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.engine.kernels import activations
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, Site
from partita.engine.kernels.parallel import Team
from partita.engine.kernels.patches import PatchGeometry, inside, receivers
from partita.engine.kernels.views import rows_of
from partita.engine.numerics import compiled, compiled_reassociating, fma
from partita.layers.connectivity import Patch
from partita.layers.rows import Rows


class LocallyConnectedKernel(Kernel):
    """`state = activation(bias + sum over the patch of weight * input)` for the machine's rows."""

    def __init__(self, site: Site, arrays: Arrays, team: Team) -> None:
        super().__init__(site, arrays, team)
        layer = site.grid.layer
        self._activation = layer.activation
        assert isinstance(layer.connectivity, Patch)
        self._geometry = PatchGeometry.of(layer.connectivity, site.sources[0].shape)
        self._inputs = self._picture(arrays.sources[0])
        self._weights = self._shaped(arrays.parameters[0])
        self._warm()

    def _warm(self) -> None:
        geometry, dtype = self._geometry, self.site.dtype
        pictures, places = np.empty((0, 0, 0), dtype), np.empty((0, 0, 0, 0), dtype)
        weight, bias = np.empty((0, 0, 0, 0, 0), dtype), np.empty((0, 0, 0), dtype)
        _up(pictures, weight, bias, places, 0, 0, geometry)
        _errors(pictures, weight, places, 0, 0, 0, 0, geometry)
        _weight_gradient(pictures, places, weight, 0, 0, geometry)
        activations.warm(self._activation, dtype)

    def up(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """A small matrix product for each place."""
        own, (window, _), operations = self.site.rows, self.site.windows[0], self.site.operations
        state, parameters, empty = (
            self.arrays.state,
            self.arrays.parameters,
            np.empty((0, 0, 0), self.site.dtype),
        )
        bias = parameters[1].reshape(state.shape[:-1]) if len(parameters) > 1 else empty

        def work(start: int, stop: int) -> None:
            states = rows_of(state, (start, stop), own)
            weight = rows_of(self._weights, (start, stop), own)
            biases = rows_of(bias, (start, stop), own) if len(bias) else bias
            _up(self._inputs, weight, biases, states, start, window, self._geometry)
            activations.activate(self._activation, states)

        return lambda: self.team.split(*own, work, operations=operations)

    def delta(self) -> Call:
        """Multiplies the errors by the slope of the activation."""
        state, error = self.arrays.state, self.arrays.own_errors
        return lambda: activations.multiply_by_slope(self._activation, state, error)

    def errors(self, source: int, rows: Rows, *, accumulate: bool) -> Call:
        """Gathers, for each row of the input, from the places whose patches reach it, in ascending order."""
        window, operations = self.site.error_windows[0], self.site.operations
        picture, delta = self._picture(self.arrays.errors_of(0)), self.arrays.own_errors

        def work(start: int, stop: int) -> None:
            place = rows_of(picture, (start, stop), window)
            if not accumulate:
                place[...] = 0
            _errors(place, self._weights, delta, start, stop, *self.site.rows, self._geometry)

        def call() -> None:
            for run in rows:
                self.team.split(*run, work, operations=operations)

        return call

    def gradient(self, out: Sequence[Array], rows: tuple[int, int] | None = None) -> Call:
        """Products of errors and inputs, summed over the examples; zero where a patch lies on the padding."""
        asked = rows or self.site.rows
        (window, _), operations = self.site.windows[0], self.site.operations
        delta = rows_of(self.arrays.own_errors, asked, self.site.rows)
        weight = self._shaped(out[0])

        def work(start: int, stop: int) -> None:
            errors = rows_of(delta, (start, stop), asked)
            gradient = rows_of(weight, (start, stop), asked)
            _weight_gradient(self._inputs, errors, gradient, start, window, self._geometry)

        def call() -> None:
            self.team.split(*asked, work, operations=operations)
            if len(out) > 1:
                np.add.reduce(delta, axis=-1, out=out[1].reshape(delta.shape[:-1]))

        return call

    def _picture(self, array: Array) -> Array:
        height, width, channels, batch = array.shape
        return array.reshape(height, width * channels, batch)

    def _shaped(self, weight: Array) -> Array:
        geometry, (_, columns, filters) = self._geometry, self.site.grid.shape
        return weight.reshape(-1, columns, filters, geometry.size_y, geometry.size_x * geometry.channels)


@compiled
def _up(
    x: Array, weight: Array, bias: Array, state: Array, first: int, window: int, g: PatchGeometry
) -> None:
    """Places from row `first` on; `x` begins at row `window` of the input."""
    for row in range(state.shape[0]):
        top = (first + row) * g.stride_y - g.before_y
        low_y, high_y = inside(top, g.size_y, g.height)
        for column in range(state.shape[1]):
            left = column * g.stride_x - g.before_x
            low, high = inside(left, g.size_x, g.width)
            low, high, left = low * g.channels, high * g.channels, left * g.channels
            sums = state[row, column]
            for f in range(state.shape[2]):
                sums[f] = bias[row, column, f] if bias.size else 0
            for y in range(low_y, high_y):
                inputs = x[top + y - window, left + low : left + high]
                _multiply_add(sums, weight[row, column, :, y, low:high], inputs)


@compiled
def _errors(
    out: Array, weight: Array, delta: Array, start: int, stop: int, first: int, last: int, g: PatchGeometry
) -> None:
    """Input rows `[start, stop)` in `out`, from places in rows `[first, last)`, whose weights and errors are
    given.

    Place after place, as the weights lie in memory: each input still meets its receivers in ascending order.
    """
    low_row, _ = receivers(start, g, first, last)
    _, high_row = receivers(stop - 1, g, first, last)
    place = np.empty(weight.shape[2:], weight.dtype)
    for row in range(low_row, high_row):
        top = row * g.stride_y - g.before_y
        for column in range(delta.shape[1]):
            left = column * g.stride_x - g.before_x
            low, high = inside(left, g.size_x, g.width)
            low, high, left = low * g.channels, high * g.channels, left * g.channels
            errors = delta[row - first, column]
            low_y, high_y = max(start, top), min(stop, top + g.size_y)
            # Read in one sweep, which memory is fast at; the products then jump about in a cached copy.
            place[:, low_y - top : high_y - top] = weight[row - first, column, :, low_y - top : high_y - top]
            for y in range(low_y, high_y):
                _multiply_add(out[y - start, left + low : left + high], place[:, y - top, low:high].T, errors)


@compiled
def _weight_gradient(
    x: Array, delta: Array, gradient: Array, first: int, window: int, g: PatchGeometry
) -> None:
    """Places from row `first` on; `x` begins at row `window` of the input."""
    for row in range(delta.shape[0]):
        top = (first + row) * g.stride_y - g.before_y
        low_y, high_y = inside(top, g.size_y, g.height)
        for column in range(delta.shape[1]):
            left = column * g.stride_x - g.before_x
            low, high = inside(left, g.size_x, g.width)
            low, high, left = low * g.channels, high * g.channels, left * g.channels
            place = gradient[row, column]
            if high - low < place.shape[2] or high_y - low_y < place.shape[1]:
                place[...] = 0
            for y in range(low_y, high_y):
                inputs = x[top + y - window, left + low : left + high]
                _dot_products(place[:, y, low:high], delta[row, column], inputs)


@compiled
def _multiply_add(out: Array, weight: Array, x: Array) -> None:
    """`out[m, example] += weight[m, k] * x[k, example]`: for each element a chain over ascending k."""
    fours = out.shape[0] - out.shape[0] % 4
    for m in range(0, fours, 4):
        _multiply_add_four(out, weight, x, m)
    for m in range(fours, out.shape[0]):
        _multiply_add_one(out, weight, x, m)


@compiled
def _multiply_add_four(out: Array, weight: Array, x: Array, m: int) -> None:
    inputs, examples = x.shape
    o0, o1, o2, o3 = out[m], out[m + 1], out[m + 2], out[m + 3]
    fours = inputs - inputs % 4
    for k in range(0, fours, 4):
        x0, x1, x2, x3 = x[k], x[k + 1], x[k + 2], x[k + 3]
        a0, a1, a2, a3 = weight[m, k], weight[m, k + 1], weight[m, k + 2], weight[m, k + 3]
        b0, b1, b2, b3 = weight[m + 1, k], weight[m + 1, k + 1], weight[m + 1, k + 2], weight[m + 1, k + 3]
        c0, c1, c2, c3 = weight[m + 2, k], weight[m + 2, k + 1], weight[m + 2, k + 2], weight[m + 2, k + 3]
        d0, d1, d2, d3 = weight[m + 3, k], weight[m + 3, k + 1], weight[m + 3, k + 2], weight[m + 3, k + 3]
        for e in range(examples):
            v0, v1, v2, v3 = x0[e], x1[e], x2[e], x3[e]
            o0[e] = fma(a3, v3, fma(a2, v2, fma(a1, v1, fma(a0, v0, o0[e]))))
            o1[e] = fma(b3, v3, fma(b2, v2, fma(b1, v1, fma(b0, v0, o1[e]))))
            o2[e] = fma(c3, v3, fma(c2, v2, fma(c1, v1, fma(c0, v0, o2[e]))))
            o3[e] = fma(d3, v3, fma(d2, v2, fma(d1, v1, fma(d0, v0, o3[e]))))
    for k in range(fours, inputs):
        x0 = x[k]
        a0, b0, c0, d0 = weight[m, k], weight[m + 1, k], weight[m + 2, k], weight[m + 3, k]
        for e in range(examples):
            v0 = x0[e]
            o0[e] = fma(a0, v0, o0[e])
            o1[e] = fma(b0, v0, o1[e])
            o2[e] = fma(c0, v0, o2[e])
            o3[e] = fma(d0, v0, o3[e])


@compiled
def _multiply_add_one(out: Array, weight: Array, x: Array, m: int) -> None:
    inputs, examples = x.shape
    o0 = out[m]
    fours = inputs - inputs % 4
    for k in range(0, fours, 4):
        x0, x1, x2, x3 = x[k], x[k + 1], x[k + 2], x[k + 3]
        a0, a1, a2, a3 = weight[m, k], weight[m, k + 1], weight[m, k + 2], weight[m, k + 3]
        for e in range(examples):
            o0[e] = fma(a3, x3[e], fma(a2, x2[e], fma(a1, x1[e], fma(a0, x0[e], o0[e]))))
    for k in range(fours, inputs):
        x0, a0 = x[k], weight[m, k]
        for e in range(examples):
            o0[e] = fma(a0, x0[e], o0[e])


@compiled_reassociating
def _dot_products(out: Array, delta: Array, x: Array) -> None:
    """`out[m, k] = sum over the examples of delta[m] * x[k]`."""
    receivers, examples = delta.shape
    fours = receivers - receivers % 4
    for m in range(0, fours, 4):
        d0, d1, d2, d3 = delta[m], delta[m + 1], delta[m + 2], delta[m + 3]
        for k in range(x.shape[0]):
            x0 = x[k]
            s0 = s1 = s2 = s3 = x.dtype.type(0)
            for e in range(examples):
                v0 = x0[e]
                s0 += d0[e] * v0
                s1 += d1[e] * v0
                s2 += d2[e] * v0
                s3 += d3[e] * v0
            out[m, k], out[m + 1, k], out[m + 2, k], out[m + 3, k] = s0, s1, s2, s3
    for m in range(fours, receivers):
        d0 = delta[m]
        for k in range(x.shape[0]):
            x0 = x[k]
            s0 = x.dtype.type(0)
            for e in range(examples):
                s0 += d0[e] * x0[e]
            out[m, k] = s0
