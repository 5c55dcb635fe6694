"""Layers of weighted sums on patches of a picture, no two places sharing a weight.

The arithmetic is in `local_loops`. This module spreads it over threads, and finishes sums while they are in
cache.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from partita.engine.kernels.activations import LOOPS, multiply_by_slope
from partita.engine.kernels.calls import bound, sequence, split_rows, split_spans
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext, no_op
from partita.engine.kernels.local_loops import (
    Places,
    accumulate_bias,
    backward_bias,
    backward_input,
    backward_weight,
    forward,
    transposed_row,
)
from partita.engine.kernels.patches import PatchGeometry
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.tiles.choice import tile_for
from partita.engine.kernels.tiles.scratch import Scratch
from partita.engine.kernels.views import columns, flat, rows_of
from partita.layers import LocallyConnected2D
from partita.layers.box import Spans
from partita.layers.connectivity import Patch

_CHUNK_BYTES = 1 << 17
"""Size of the sums that are finished at once."""


class PatchSumKernel(Kernel):
    """Weighted sums of patches. A subclass defines the activation and its gradient.

    The first parameter is the weight, the second, if there is one, the bias.
    """

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        connectivity = context.grid.connectivity
        assert isinstance(connectivity, Patch)
        assert connectivity.is_box, "a patch is a whole box of nodes"
        self._geometry = PatchGeometry.of(connectivity, context.sources[0].shape)
        self._x = flat(arrays.inputs[0])
        self._weight, *biases = map(flat, arrays.parameters)
        self._bias = biases[0] if biases else np.zeros(0, context.dtype)
        self._scratch, self._in_place = Scratch(pool.threads, context.master), context.dtype == context.master

    @abstractmethod
    def finish(self, sums: Array, output: Array, begin: int) -> None:
        """Turns sums into activations. Called in every step, from several threads.

        Args:
            sums: of some rows of nodes, `[node, example]`, float32 or float64, bias included.
            output: activations of the same nodes, in storage type; `sums` itself where that is its type.
            begin: number of the machine's nodes before them.
        """

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Multiplies small matrices, one for each place."""
        if not last:  # the whole sum is computed when all blocks are present
            return no_op
        return self.forward_rows((self.context.rows,))

    def forward_rows(self, rows: Spans) -> Call:
        """Computes sums and activations for some of the machine's rows."""
        context, places, geometry = self.context, self._places(self.context.windows[0]), self._geometry
        runs = [run for span in rows for run in self._chunks(*span)]
        chunks = [(run, columns(rows_of(self.arrays.output, run, context.rows))) for run in runs]
        operations = context.operations * sum(stop - start for start, stop in rows) / context.n_rows
        size = 0 if self._in_place else max(output.size for _, output in chunks)
        tile = tile_for(context, "forward", shared=False)
        self._scratch.reserve(size)

        def work(start: int, stop: int) -> None:
            with self._scratch.take(size) as scratch:
                for run, output in chunks[start:stop]:
                    sums = output if self._in_place else scratch[: output.size].reshape(output.shape)
                    forward(sums.reshape(-1), self._x, self._weight, self._bias, run, places, geometry, tile)
                    self.finish(sums, output, (run[0] - context.rows[0]) * context.grid.nodes_per_row)

        with self._scratch.take(0) as scratch:
            bound(forward, scratch, self._x, self._weight, self._bias, (0, 0), places, geometry, tile)
        return split_spans(self.pool, ((0, len(chunks)),), work, operations=operations)

    def _chunks(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Divides rows into spans whose sums fit the cache, some for each thread."""
        n = max(1, _CHUNK_BYTES // (self.arrays.output[0].size * self.context.master.itemsize))
        if self.pool.threads > 1:
            n = min(n, -(-self.context.n_rows // (4 * self.pool.threads)))
        return [(row, min(row + n, stop)) for row in range(start, stop, n)]

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Adds the share of each place to the gradient of its patch, place after place."""
        places, geometry = self._places(self.context.grad_windows[0]), self._geometry
        out, grad = flat(self.arrays.grad_input(source)), flat(self.arrays.own_grad)
        operations, batch = self.context.operations / geometry.height, self.context.batch
        size = 0 if self._in_place else geometry.size_y * geometry.width * geometry.channels * batch
        tile, weight = tile_for(self.context, "input gradient", shared=False), self._weight
        self._scratch.reserve(size)

        def work(start: int, stop: int) -> None:
            with self._scratch.take(size) as scratch:
                sums = out if self._in_place else scratch
                backward_input(out, sums, weight, grad, (start, stop), accumulate, places, geometry, tile)

        def call() -> None:
            for start, stop in rows:
                self.pool.split(start, stop, work, operations=operations * (stop - start))

        with self._scratch.take(0) as scratch:
            sums = out if self._in_place else scratch
            bound(backward_input, out, sums, weight, grad, (0, 0), accumulate, places, geometry, tile)
        return call

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Sums products of gradients and inputs over the examples; zero where a patch lies on padding."""
        context, places, geometry = self.context, self._places(self.context.windows[0]), self._geometry
        span, tile = rows or context.rows, tile_for(context, "weight gradient", shared=False)
        first, last = span
        x, grad = self._x, flat(self.arrays.own_grad)
        weight = flat(out[0]).reshape(last - first, -1)
        size = geometry.size_y * transposed_row(geometry, context.batch, context.master.itemsize)
        operations = context.operations * (last - first) / context.n_rows
        self._scratch.reserve(size)

        def work(start: int, stop: int) -> None:
            with self._scratch.take(size) as scratch:
                place = weight[start - first : stop - first].reshape(-1)
                backward_weight(place, scratch, x, grad, (start, stop), places, geometry, accumulate, tile)

        multiply = split_spans(self.pool, (span,), work, operations=operations)
        if len(out) == 1:
            return multiply
        own = columns(rows_of(self.arrays.own_grad, span, context.rows))
        add = accumulate_bias if accumulate else backward_bias
        return sequence(multiply, split_rows(self.pool, add, own, flat(out[1])))

    def _places(self, window: tuple[int, int]) -> Places:
        _, n_columns, filters = self.context.grid.shape
        return Places(*self.context.rows, n_columns, filters, self.context.batch, window[0])


class LocallyConnectedKernel(PatchSumKernel):
    """`output = activation(bias + sum over the patch of weight * input)` for the machine's rows."""

    layer = LocallyConnected2D
    gradient_by_threads = True

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        self._function = context.grid.layer.activation
        self._loops, self._no_bias = LOOPS[self._function], np.zeros(1, context.master)
        bound(self._loops.activate, np.zeros(0, context.dtype))
        empty = np.zeros((0, 0), context.master)
        bound(self._loops.finish_into, empty, self._no_bias, columns(arrays.output))

    def finish(self, sums: Array, output: Array, begin: int) -> None:
        """Applies the activation to sums."""
        if sums is not output:  # all nodes as one: the bias is in the sums
            self._loops.finish_into(sums.reshape(1, -1), self._no_bias, output.reshape(1, -1))
        elif self._function != "linear":
            self._loops.activate(output.reshape(-1))

    def backward_activation(self) -> Call:
        """Multiplies the gradient by the slope of the activation."""
        return multiply_by_slope(self._function, self)
