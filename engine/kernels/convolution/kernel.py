"""Convolutions: `convolution_loops` and `convolution_gradient` on a machine's rows, spread over threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from partita.engine.kernels import activations
from partita.engine.kernels.calls import accumulated, sequence
from partita.engine.kernels.convolution.few import find_errors_of_few, find_states_of_few, turn_weights
from partita.engine.kernels.convolution.geometry import Geometry
from partita.engine.kernels.convolution.gradient import add_bias_gradient, find_weight_gradient
from partita.engine.kernels.convolution.loops import ACTIVATIONS, find_errors, find_states, pack
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext, no_op
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.tiles.llvm_vectors import VECTOR_BYTES
from partita.engine.kernels.tiles.scratch import Scratch
from partita.engine.kernels.tiles.vector_products import ROWS
from partita.engine.kernels.views import rows_of
from partita.layers import Conv2D, Patch
from partita.layers.box import Spans

_LEAST = 16
"""Filters for which a thread of its own is worth while, as they fill a vector."""


class Conv2DKernel(Kernel):
    """`state = activation(sum over the patch of weight * input + bias)` for the machine's rows.

    Vectors lie along the examples; or, where these are few, along filters on the way up and along channels on
    the way down. The way up also lays out the weights as either needs them.
    """

    gradient_by_rows = False

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        layer, source = context.grid.layer, context.sources[0].shape
        connectivity = context.grid.connectivity
        assert isinstance(layer, Conv2D) and isinstance(connectivity, Patch)
        self._function, self._geometry = layer.activation, Geometry.of(connectivity, source)
        self._shape = filters, height, width, channels = context.grid.parameters[0].shape
        self._weight = arrays.parameters[0].reshape(self._shape)
        self._bias = arrays.parameters[1] if layer.use_bias else np.zeros(filters, context.dtype)
        size = filters // layer.groups
        self._few_up, self._few_down = self._fill_no_vector(size), self._fill_no_vector(channels)
        self._turned = np.zeros((height, width, channels, filters * self._few_up), context.master)
        packs = not self._few_down and any(errors is not None for errors in arrays.grad_inputs)
        tiles = layer.groups * -(-channels // ROWS) * packs
        self._packed = np.zeros((tiles, height, width, size, ROWS), context.master)
        self._scratch = Scratch(pool.threads, context.master)

    def _fill_no_vector(self, nodes: int) -> bool:
        """Whether so many nodes of a place make better vectors than the examples do."""
        return self.context.batch < min(2 * VECTOR_BYTES // self.context.master.itemsize, nodes)

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """A matrix product for each place."""
        own, (window, _), operations = self.context.rows, self.context.windows[0], self.context.operations
        x, state, geometry, bias = self.arrays.inputs[0], self.arrays.output, self._geometry, self._bias
        activation, (_, columns, filters, batch) = ACTIVATIONS.index(self._function), state.shape
        row = (columns + 1, batch, filters) if self._few_up else (columns, filters, batch)
        find, weight = (find_states_of_few, self._turned) if self._few_up else (find_states, self._weight)
        self._scratch.reserve(math.prod(row))

        def work(start: int, stop: int) -> None:
            with self._scratch.lent(math.prod(row)) as room:
                states = rows_of(state, (start, stop), own)
                find(x, window, weight, bias, states, start, activation, room.reshape(row), geometry)

        work(own[0], own[0])
        split = self.pool.split
        return sequence(self._turning(), lambda: split(*own, work, operations=operations), self._packing())

    def _turning(self) -> Call:
        """Lays out the weights for the way up."""
        if not self._few_up:
            return no_op
        weight, turned = self._weight, self._turned

        def work(begin: int, end: int) -> None:
            turn_weights(weight, turned, begin, end)

        work(0, 0)
        return lambda: self.pool.split(0, weight[0].size, work, operations=turned.size)

    def _packing(self) -> Call:
        """Lays out the weights for the way down."""
        weight, packed, geometry = self._weight, self._packed, self._geometry
        if not len(packed):
            return no_op

        def work(begin: int, end: int) -> None:
            pack(weight, packed, geometry, begin, end)

        work(0, 0)
        return lambda: self.pool.split(0, len(packed), work, operations=packed.size)

    def backward_activation(self) -> Call:
        """Multiplies the errors by the slope of the activation."""
        if self._function == "linear":
            return no_op
        activations.warm(activations.LOOPS[self._function].multiply, self.context.dtype)
        state, error = self.arrays.output, self.arrays.own_grad
        return lambda: activations.multiply_by_slope(self._function, state, error)

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Gathers, for each place of the input, from those whose patches hold it, in ascending rows."""
        window, (first, _), operations = (
            self.context.grad_windows[0],
            self.context.rows,
            self.context.operations,
        )
        out, delta = self.arrays.grad_input(0), self.arrays.own_grad
        _, columns, channels, batch = out.shape
        row = (columns, batch, channels) if self._few_down else (columns, channels, batch)
        find, weight = (find_errors_of_few, self._weight) if self._few_down else (find_errors, self._packed)
        self._scratch.reserve(math.prod(row))

        def work(start: int, stop: int) -> None:
            with self._scratch.lent(math.prod(row)) as room:
                errors, sums = rows_of(out, (start, stop), window), room.reshape(row)
                find(errors, start, weight, delta, first, accumulate, sums, self._geometry)

        def call() -> None:
            for run in rows:
                self.pool.split(*run, work, operations=operations)

        work(window[0], window[0])
        return call

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Products of errors and inputs, summed over the places of the machine's rows and the examples."""
        assert rows is None, "all rows share the weights"
        if accumulate:
            return accumulated(self.backward_parameters, out)
        x, delta, geometry = self.arrays.inputs[0], self.arrays.own_grad, self._geometry
        (window, _), (first, _), operations = (
            self.context.windows[0],
            self.context.rows,
            self.context.operations,
        )
        filters, batch = self._shape[0], self.context.batch
        weight, parts = out[0].reshape(filters, -1), self._parts()
        turned = np.zeros((delta.shape[1], batch, filters), self.context.master)
        sums, totals = np.zeros(weight.T.shape, self.context.master), np.zeros(filters)

        def work(start: int, stop: int) -> None:
            for begin, end in parts[start:stop]:
                find_weight_gradient(x, window, delta, first, turned, sums, weight, begin, end, geometry)

        def call() -> None:
            self.pool.split(0, len(parts), work, operations=operations)
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
        n = max(1, min(-(-self.pool.threads // groups), size // _LEAST))
        cuts = [group * size + size * k // n for group in range(groups) for k in range(n)]
        return list(pairwise([*cuts, groups * size]))
