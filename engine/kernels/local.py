"""Layers of weighted sums on patches of a picture, no two places sharing a weight.

The arithmetic is in `local_loops`. This spreads it over threads, and finishes sums while they are in cache.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from partita.engine.kernels.activations import LOOPS
from partita.engine.kernels.calls import bound, sequence, split_rows
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext, no_op
from partita.engine.kernels.local_loops import (
    Places,
    add_bias_gradient,
    bias_gradient,
    input_errors,
    turned_row,
    weight_gradient,
    weighted_sums,
)
from partita.engine.kernels.patches import PatchGeometry
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.tiles.scratch import Scratch
from partita.engine.kernels.views import columns, rows_of
from partita.layers.box import Spans
from partita.layers.connectivity import Patch

_CHUNK_BYTES = 1 << 17
"""Of sums that are finished at once."""


class PatchSumKernel(Kernel):
    """Weighted sums of patches. What becomes of a sum, and of the error of a state, a subclass says.

    The first parameter is the weight, the second, if there is one, the bias.
    """

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        connectivity = context.grid.connectivity
        assert isinstance(connectivity, Patch)
        assert connectivity.is_box, "a patch is a whole box of nodes"
        self._geometry = PatchGeometry.of(connectivity, context.sources[0].shape)
        self._x = _flat(arrays.inputs[0])
        self._weight, *biases = map(_flat, arrays.parameters)
        self._bias = biases[0] if biases else np.zeros(0, context.dtype)
        self._scratch, self._in_place = Scratch(pool.threads, context.master), context.dtype == context.master

    @abstractmethod
    def finish(self, sums: Array, state: Array, begin: int) -> None:
        """Turns sums into states. Called in every step, from several threads.

        Args:
            sums: of some rows of nodes, `[node, example]`, float32 or float64, bias included.
            state: of the same, as it is stored; `sums` itself, if that is how it is stored.
            begin: how many of the machine's nodes stand before them.
        """

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """A small matrix product for each place."""
        if not last:  # a sum in blocks is taken at once when all of them are there
            return no_op
        context, places, geometry = self.context, self._places(self.context.windows[0]), self._geometry
        chunks = [(rows, columns(rows_of(self.arrays.output, rows, context.rows))) for rows in self._chunks()]
        size = 0 if self._in_place else max(state.size for _, state in chunks)
        self._scratch.reserve(size)

        def work(start: int, stop: int) -> None:
            with self._scratch.lent(size) as room:
                for rows, state in chunks[start:stop]:
                    sums = state if self._in_place else room[: state.size].reshape(state.shape)
                    weighted_sums(sums.reshape(-1), self._x, self._weight, self._bias, rows, places, geometry)
                    self.finish(sums, state, (rows[0] - context.rows[0]) * context.grid.nodes_per_row)

        with self._scratch.lent(0) as room:
            bound(weighted_sums, room, self._x, self._weight, self._bias, (0, 0), places, geometry)
        return lambda: self.pool.split(0, len(chunks), work, operations=context.operations)

    def _chunks(self) -> list[tuple[int, int]]:
        """Runs of rows whose sums fit the cache, some for each thread."""
        start, stop = self.context.rows
        n = max(1, _CHUNK_BYTES // (self.arrays.output[0].size * self.context.master.itemsize))
        if self.pool.threads > 1:
            n = min(n, -(-self.context.n_rows // (4 * self.pool.threads)))
        return [(row, min(row + n, stop)) for row in range(start, stop, n)]

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Adds to the inputs of a place after place."""
        places, geometry = self._places(self.context.grad_windows[0]), self._geometry
        out, delta = _flat(self.arrays.grad_input(source)), _flat(self.arrays.own_grad)
        operations = self.context.operations / self._geometry.height
        size = (
            0 if self._in_place else geometry.size_y * geometry.width * geometry.channels * self.context.batch
        )
        self._scratch.reserve(size)

        def work(start: int, stop: int) -> None:
            with self._scratch.lent(size) as room:
                sums = out if self._in_place else room
                input_errors(out, sums, self._weight, delta, (start, stop), accumulate, places, geometry)

        def call() -> None:
            for start, stop in rows:
                self.pool.split(start, stop, work, operations=operations * (stop - start))

        with self._scratch.lent(0) as room:
            sums = out if self._in_place else room
            bound(input_errors, out, sums, self._weight, delta, (0, 0), accumulate, places, geometry)
        return call

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Products of errors and inputs, summed over the examples; zero where a patch lies on the padding."""
        context, places, geometry = self.context, self._places(self.context.windows[0]), self._geometry
        first, last = rows or context.rows
        delta, errors = self.arrays.own_grad, _flat(self.arrays.own_grad)
        weight = _flat(out[0]).reshape(last - first, -1)
        size = geometry.size_y * turned_row(geometry, context.batch, context.master.itemsize)
        operations = context.operations * (last - first) / context.n_rows
        self._scratch.reserve(size)

        def work(start: int, stop: int) -> None:
            with self._scratch.lent(size) as turned:
                place = weight[start - first : stop - first].reshape(-1)
                weight_gradient(place, turned, self._x, errors, (start, stop), places, geometry, accumulate)

        with self._scratch.lent(size) as turned:
            place = weight.reshape(-1)
            bound(weight_gradient, place, turned, self._x, errors, (0, 0), places, geometry, accumulate)

        def multiply() -> None:
            self.pool.split(first, last, work, operations=operations)

        if len(out) == 1:
            return multiply
        own = columns(rows_of(delta, (first, last), context.rows))
        add = add_bias_gradient if accumulate else bias_gradient
        return sequence(multiply, split_rows(self.pool, add, own, _flat(out[1])))

    def _places(self, window: tuple[int, int]) -> Places:
        _, n_columns, filters = self.context.grid.shape
        return Places(*self.context.rows, n_columns, filters, self.context.batch, window[0])


class LocallyConnectedKernel(PatchSumKernel):
    """`state = activation(bias + sum over the patch of weight * input)` for the machine's rows."""

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        self._loops, self._is_linear = (
            LOOPS[context.grid.layer.activation],
            context.grid.layer.activation == "linear",
        )
        self._no_bias = np.zeros(1, context.master)
        bound(self._loops.activate, np.zeros(0, context.dtype))
        bound(
            self._loops.finish_into, np.zeros((0, 0), context.master), self._no_bias, columns(arrays.output)
        )

    def finish(self, sums: Array, state: Array, begin: int) -> None:
        """Applies the activation."""
        if sums is not state:  # all nodes as one: the bias is in the sums
            self._loops.finish_into(sums.reshape(1, -1), self._no_bias, state.reshape(1, -1))
        elif not self._is_linear:
            self._loops.activate(state.reshape(-1))

    def backward_activation(self) -> Call:
        """Multiplies the errors by the slope of the activation."""
        if self._is_linear:
            return no_op
        state, errors = _flat(self.arrays.output), _flat(self.arrays.own_grad)
        return split_rows(self.pool, self._loops.multiply, state, errors)


def _flat(array: Array) -> Array:
    """All numbers, in their order; a view."""
    assert array.flags.c_contiguous, f"an array of strides {array.strides} is not contiguous"
    return array.reshape(-1)
