"""Convolutions: `convolution_loops` and `convolution_gradient` on a machine's rows, spread over threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from partita.engine.kernels import activations
from partita.engine.kernels.convolution_geometry import Geometry
from partita.engine.kernels.convolution_gradient import add_bias_gradient, find_weight_gradient
from partita.engine.kernels.convolution_loops import ACTIVATIONS, find_errors, find_states, pack
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, Site
from partita.engine.kernels.parallel import Team
from partita.engine.kernels.scratch import Scratch
from partita.engine.kernels.vector_products import ROWS
from partita.engine.kernels.views import rows_of
from partita.layers import Conv2D
from partita.layers.rows import Rows

_LEAST = 16
"""Filters for which a thread of its own is worth while, as they fill a vector."""


class Conv2DKernel(Kernel):
    """`state = activation(sum over the patch of weight * input + bias)` for the machine's rows.

    The way up also lays out the weights as the way down reads them, where errors are asked for.
    """

    gradient_by_rows = False

    def __init__(self, site: Site, arrays: Arrays, team: Team) -> None:
        super().__init__(site, arrays, team)
        layer, source = site.grid.layer, site.sources[0].shape
        assert isinstance(layer, Conv2D)
        self._function, self._geometry = layer.activation, Geometry.of(layer.connectivity, source)
        self._shape = filters, height, width, channels = site.grid.parameters[0].shape
        self._weight = arrays.parameters[0].reshape(self._shape)
        self._bias = arrays.parameters[1] if layer.use_bias else np.zeros(filters, site.dtype)
        has_errors = any(errors is not None for errors in arrays.errors)
        tiles = layer.groups * -(-channels // ROWS) if has_errors else 0
        self._packed = np.zeros((tiles, height, width, filters // layer.groups, ROWS), site.master)
        self._scratch = Scratch(team.threads, site.master)
        activations.warm(self._function, site.dtype)

    def up(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """A matrix product for each place."""
        own, (window, _), operations = self.site.rows, self.site.windows[0], self.site.operations
        x, state, geometry = self.arrays.sources[0], self.arrays.state, self._geometry
        weight, bias, packed = self._weight, self._bias, self._packed
        activation, row = ACTIVATIONS.index(self._function), state.shape[1:]
        self._scratch.reserve(math.prod(row))

        def work(start: int, stop: int) -> None:
            with self._scratch.lent(math.prod(row)) as room:
                states, sums = rows_of(state, (start, stop), own), room.reshape(row)
                find_states(x, window, weight, bias, states, start, activation, sums, geometry)

        def lay_out(begin: int, end: int) -> None:
            pack(weight, packed, geometry, begin, end)

        def call() -> None:
            self.team.split(*own, work, operations=operations)
            self.team.split(0, len(packed), lay_out, operations=packed.size)

        work(own[0], own[0])
        lay_out(0, 0)
        return call

    def delta(self) -> Call:
        """Multiplies the errors by the slope of the activation."""
        state, error = self.arrays.state, self.arrays.own_errors
        return lambda: activations.multiply_by_slope(self._function, state, error)

    def errors(self, source: int, rows: Rows, *, accumulate: bool) -> Call:
        """Gathers, for each place of the input, from those whose patches hold it, in ascending rows."""
        window, (first, _), operations = self.site.error_windows[0], self.site.rows, self.site.operations
        out, delta, packed = self.arrays.errors_of(0), self.arrays.own_errors, self._packed
        row = out.shape[1:]
        self._scratch.reserve(math.prod(row))

        def work(start: int, stop: int) -> None:
            with self._scratch.lent(math.prod(row)) as room:
                errors, sums = rows_of(out, (start, stop), window), room.reshape(row)
                find_errors(errors, start, packed, delta, first, accumulate, sums, self._geometry)

        def call() -> None:
            for run in rows:
                self.team.split(*run, work, operations=operations)

        work(window[0], window[0])
        return call

    def gradient(self, out: Sequence[Array], rows: tuple[int, int] | None = None) -> Call:
        """Products of errors and inputs, summed over the places of the machine's rows and the examples."""
        assert rows is None, "all rows share the weights"
        x, delta, geometry = self.arrays.sources[0], self.arrays.own_errors, self._geometry
        (window, _), (first, _), operations = self.site.windows[0], self.site.rows, self.site.operations
        filters, batch = self._shape[0], self.site.batch
        weight, parts = out[0].reshape(filters, -1), self._parts()
        turned = np.zeros((delta.shape[1], batch, filters), self.site.master)
        sums, totals = np.zeros(weight.T.shape, self.site.master), np.zeros(filters)

        def work(start: int, stop: int) -> None:
            for begin, end in parts[start:stop]:
                find_weight_gradient(x, window, delta, first, turned, sums, weight, begin, end, geometry)

        def call() -> None:
            self.team.split(0, len(parts), work, operations=operations)
            if len(out) > 1:
                totals[:] = 0
                add_bias_gradient(delta, totals)
                out[1][...] = totals

        find_weight_gradient(x, window, delta[:0], first, turned, sums, weight, 0, 0, geometry)
        add_bias_gradient(delta[:0], totals)
        return call

    def _parts(self) -> list[tuple[int, int]]:
        """The filters `[begin, end)` that a thread takes at a time: of one group each."""
        groups, size = self._geometry.groups, self._shape[0] // self._geometry.groups
        n = max(1, min(-(-self.team.threads // groups), size // _LEAST))
        cuts = [group * size + size * k // n for group in range(groups) for k in range(n)]
        return list(pairwise([*cuts, groups * size]))
