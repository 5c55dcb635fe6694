"""Convolutions: the loops of this folder on a machine's rows, spread over threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from partita.engine.kernels.activations import multiply_by_slope
from partita.engine.kernels.calls import accumulated, sequence, split_spans
from partita.engine.kernels.convolution.gradient import accumulate_bias, backward_weight
from partita.engine.kernels.convolution.loops import ACTIVATIONS, backward_input, forward, pack
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext, no_op
from partita.engine.kernels.patches import PatchGeometry
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.tiles.choice import tile_for
from partita.engine.kernels.tiles.scratch import Scratch
from partita.engine.kernels.views import rows_of
from partita.layers import Conv2D, Patch
from partita.layers.box import Spans

_LEAST = 16
"""Fewest filters for a thread of its own, and fewest examples of the kernel, as they fill a vector. With
fewer PyTorch is as fast, or nearly so.
"""


class Conv2DKernel(Kernel):
    """`output = activation(sum over the patch of weight * input + bias)` for the machine's rows.

    Vectors run over the examples. The forward pass also lays out the weights for the backward pass.
    """

    layer = Conv2D
    gradient_by_rows = False

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        layer, source = context.grid.layer, context.sources[0].shape
        connectivity = context.grid.connectivity
        assert isinstance(layer, Conv2D) and isinstance(connectivity, Patch)
        self._function, self._geometry = layer.activation, PatchGeometry.of(connectivity, source)
        self._shape = filters, height, width, channels = context.grid.parameters[0].shape
        self._weight = arrays.parameters[0].reshape(self._shape)
        self._bias = arrays.parameters[1] if layer.use_bias else np.zeros(filters, context.dtype)
        self._tile = tile_for(context, "input gradient", shared=True)
        tiles = -(-channels // self._tile.rows) * any(grad is not None for grad in arrays.grad_inputs)
        self._packed = np.zeros((tiles, height, width, filters, self._tile.rows), context.master)
        self._scratch = Scratch(pool.threads, context.master)

    @classmethod
    def computes(cls, context: KernelContext) -> bool:
        """Returns whether examples fill a vector, and filters read whole patches."""
        connectivity = context.grid.connectivity
        return context.batch >= _LEAST and isinstance(connectivity, Patch) and connectivity.is_box

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Multiplies matrices, one for each place."""
        own, (window, _) = self.context.rows, self.context.windows[0]
        x, output, geometry, bias = self.arrays.inputs[0], self.arrays.output, self._geometry, self._bias
        activation, row, weight = ACTIVATIONS.index(self._function), output.shape[1:], self._weight
        tile = tile_for(self.context, "forward", shared=True)
        self._scratch.reserve(math.prod(row))

        def work(start: int, stop: int) -> None:
            with self._scratch.take(math.prod(row)) as scratch:
                out, sums = rows_of(output, (start, stop), own), scratch.reshape(row)
                forward(x, weight, bias, out, (window, start), activation, sums, geometry, tile)

        multiply = split_spans(self.pool, (own,), work, operations=self.context.operations)
        return sequence(multiply, self._packing())

    def _packing(self) -> Call:
        """Lays out the weights for the backward pass."""
        weight, packed = self._weight, self._packed
        if not len(packed):
            return no_op

        def work(begin: int, end: int) -> None:
            pack(weight, packed, begin, end)

        return split_spans(self.pool, ((0, len(packed)),), work, operations=packed.size)

    def backward_activation(self) -> Call:
        """Multiplies the gradient by the slope of the activation."""
        return multiply_by_slope(self._function, self)

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Sums, for each place of the input, over the places whose patches hold it, in ascending rows."""
        window, (first, _) = self.context.grad_windows[0], self.context.rows
        out, grad = self.arrays.grad_input(0), self.arrays.own_grad
        weight, row, geometry, tile = self._packed, out.shape[1:], self._geometry, self._tile
        self._scratch.reserve(math.prod(row))

        def work(start: int, stop: int) -> None:
            with self._scratch.take(math.prod(row)) as scratch:
                place, sums = rows_of(out, (start, stop), window), scratch.reshape(row)
                backward_input(place, start, weight, grad, first, accumulate, sums, geometry, tile)

        return split_spans(self.pool, rows, work, operations=self.context.operations)

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Sums products of gradients and inputs over the places of the machine's rows and the examples."""
        assert rows is None, "all rows share the weights"
        if accumulate:
            return accumulated(self.backward_parameters, out)
        x, grad, geometry = self.arrays.inputs[0], self.arrays.own_grad, self._geometry
        (window, _), (first, _) = self.context.windows[0], self.context.rows
        filters, batch = self._shape[0], self.context.batch
        weight, parts = out[0].reshape(filters, -1), self._parts()
        tile = tile_for(self.context, "weight gradient", shared=True)
        transposed = np.zeros((grad.shape[1], batch, filters), self.context.master)
        sums, totals = np.zeros(weight.T.shape, self.context.master), np.zeros(filters)

        def work(start: int, stop: int) -> None:
            for begin, end in parts[start:stop]:
                backward_weight(
                    x, grad, (window, first), transposed, sums, weight, (begin, end), geometry, tile
                )

        def add_bias() -> None:
            totals[:] = 0
            accumulate_bias(grad, totals)
            out[1][...] = totals

        backward_weight(x, grad[:0], (window, first), transposed, sums, weight, (0, 0), geometry, tile)
        accumulate_bias(grad[:0], totals)
        multiply = split_spans(self.pool, ((0, len(parts)),), work, operations=self.context.operations)
        return sequence(multiply, add_bias if len(out) > 1 else no_op)

    def _parts(self) -> list[tuple[int, int]]:
        """Filters `[begin, end)` for a thread at a time."""
        n = max(1, min(self.pool.threads, self._shape[0] // _LEAST))
        return list(pairwise(self._shape[0] * k // n for k in range(n + 1)))
