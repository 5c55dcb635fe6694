"""Users' nodes that take weighted sums: products of the built-in layers, and loops generated from two
functions.

The gradient of the sums is computed where it is needed into an array of its own: that of the activations may
still be wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from partita.engine.kernels.calls import sequence, split_rows
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext, no_op
from partita.engine.kernels.local import PatchSumKernel
from partita.engine.kernels.local_loops import accumulate_bias, backward_bias
from partita.engine.kernels.nodes.loops import SumLoops
from partita.engine.kernels.parameters import is_per_node
from partita.engine.kernels.products.tiles import product
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.tiles.scratch import Scratch
from partita.engine.kernels.views import columns, rows_of
from partita.engine.numerics import downcast_array, upcast_array
from partita.layers import connectivity
from partita.layers.box import Box, BoxSet, Spans


class _OwnFunctions:
    """The two functions of the node, over rows of its layer; `grad` is the gradient of the sums."""

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool, loops: SumLoops) -> None:
        (source,) = context.sources
        self._context, self._pool, self._loops, self._arrays = context, pool, loops, arrays
        fan_in = context.grid.connectivity.fan_in(source.shape)
        of_nodes = [is_per_node(parameter, context.grid) for parameter in context.grid.parameters]
        pairs = zip(arrays.parameters, of_nodes, strict=True)
        self._given = (fan_in, *(parameter.reshape(-1) for parameter, is_own in pairs if is_own))
        self._of_nodes = [i for i, is_own in enumerate(of_nodes) if is_own]
        shape = columns(arrays.output).shape
        self._sums = np.zeros(shape, context.master) if loops.keeps_sums else None
        differs = loops.backward_sum is not None and arrays.grad_output is not None
        self.grad = np.zeros_like(arrays.own_grad) if differs else arrays.grad_output

    @property
    def own_grad(self) -> Array:
        """The gradient of the sums, which must be there."""
        assert self.grad is not None, "this layer has no backward pass"
        return self.grad

    def finish(self, sums: Array, output: Array, begin: int) -> None:
        """Turns the sums of some nodes into activations, both `[node, example]`, in bfloat16 two arrays.

        `begin` nodes of the machine stand before them.
        """
        if self._sums is not None:
            self._sums[begin : begin + len(sums)] = sums
        given = self._given if sums is output else (*self._given, sums)
        self._loops.finish(*given, output, begin)

    def backward_sums(self, rows: tuple[int, int]) -> Call:
        """Computes the gradient of the sums of these rows."""
        loop, own = self._loops.backward_sum, self._context.rows
        if loop is None or self.grad is None:
            return no_op
        per_row = self._context.grid.nodes_per_row
        arrays = self._arrays.output, self._arrays.own_grad, self.grad

        def work(start: int, stop: int) -> None:
            of_rows = (columns(rows_of(array, (start, stop), own)) for array in arrays)
            begin, end = (start - own[0]) * per_row, (stop - own[0]) * per_row
            sums = () if self._sums is None else (self._sums[begin:end],)
            loop(*self._given, *sums, *of_rows, begin)

        operations = float(per_row * self._context.batch * (rows[1] - rows[0]))
        return lambda: self._pool.split(*rows, work, operations=operations)

    def gradient_of_nodes(self, out: Sequence[Array], rows: tuple[int, int], *, accumulate: bool) -> Call:
        """The gradient of the node's own parameters: that of the sums, over the examples."""
        if not self._of_nodes:
            return no_op
        grad = columns(rows_of(self.own_grad, rows, self._context.rows))
        sums = (out[i].reshape(-1) for i in self._of_nodes)
        add = accumulate_bias if accumulate else backward_bias
        return sequence(*(split_rows(self._pool, add, grad, place) for place in sums))


class NodePatchSumKernel(PatchSumKernel):
    """A node's weighted sum of a patch of a picture."""

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool, loops: SumLoops) -> None:
        self._own, self._weights = _OwnFunctions(context, arrays, pool, loops), loops.weight
        weight = arrays.parameters[loops.weight]
        super().__init__(context, replace(arrays, parameters=(weight,), grad_output=self._own.grad), pool)

    def finish(self, sums: Array, state: Array, begin: int) -> None:
        """Runs the part of `upward` behind its sum."""
        self._own.finish(sums, state, begin)

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Multiplies, after the gradient of the sums that reach these rows."""
        products = super().backward_input(source, rows, accumulate=accumulate)
        return sequence(self._own.backward_sums(self._receivers(rows)), products)

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Multiplies, after the gradient of the sums of these rows."""
        asked = rows or self.context.rows
        products = super().backward_parameters((out[self._weights],), asked, accumulate=accumulate)
        of_nodes = self._own.gradient_of_nodes(out, asked, accumulate=accumulate)
        return sequence(self._own.backward_sums(asked), products, of_nodes)

    def _receivers(self, rows: Spans) -> tuple[int, int]:
        """Finds the machine's rows that read one of these rows of the input."""
        grid, (source,), (start, stop) = self.context.grid, self.context.sources, self.context.rows
        inputs = (
            grid.connectivity.source_rows(Box.of_rows(row, row + 1), grid.shape, source.shape)
            for row in range(start, stop)
        )
        asked = BoxSet.of_rows(*rows)
        found = [row for row, of_row in enumerate(inputs, start) if of_row.overlaps(asked)]
        return (found[0], found[-1] + 1) if found else (start, start)


class NodeFullSumKernel(Kernel):
    """A node's weighted sum of the whole input."""

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool, loops: SumLoops) -> None:
        super().__init__(context, arrays, pool)
        self._own, self._weights = _OwnFunctions(context, arrays, pool, loops), loops.weight
        self._x, self._output = columns(arrays.inputs[0]), columns(arrays.output)
        self._weight = arrays.parameters[loops.weight].reshape(len(self._output), len(self._x))
        self._in_place = context.dtype == context.master
        self._transposed = Scratch(1, context.master)

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """One product, and what `upward` does with its sums."""
        if not last:
            return no_op
        output = self._output
        sums = output if self._in_place else np.zeros(output.shape, self.context.master)

        def finish(start: int, stop: int) -> None:
            part = output[start:stop]
            self._own.finish(part if self._in_place else sums[start:stop], part, start)

        operations = float(output.size)
        multiply = self._product(self._weight, self._x, sums)
        return sequence(multiply, lambda: self.pool.split(0, len(output), finish, operations=operations))

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """The transposed weight times the gradient of the sums."""
        calls, window = [self._own.backward_sums(self.context.rows)], self.context.grad_windows[0]
        grad, per_row = columns(self._own.own_grad), self.context.sources[0].nodes_per_row
        for start, stop in rows:
            out = columns(rows_of(self.arrays.grad_input(0), (start, stop), window))
            weight = self._weight[:, start * per_row : stop * per_row].T
            calls.append(self._rounded_product(weight, grad, out, accumulate=accumulate))
        return sequence(*calls)

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Products of the gradient of the sums with the inputs, summed over the examples."""
        asked = rows or self.context.rows
        grad = columns(rows_of(self._own.own_grad, asked, self.context.rows))
        weight = out[self._weights].reshape(len(grad), -1)
        multiply = self._product(grad, self._x.T, weight, accumulate=accumulate)
        of_nodes = self._own.gradient_of_nodes(out, asked, accumulate=accumulate)
        return sequence(self._own.backward_sums(asked), multiply, of_nodes)

    def _rounded_product(self, a: Array, b: Array, out: Array, *, accumulate: bool) -> Call:
        """A product that is rounded once where `out` is bfloat16."""
        if self._in_place:
            return self._product(a, b, out, accumulate=accumulate)
        sums = np.zeros(out.shape, self.context.master)
        multiply = self._product(a, b, sums, accumulate=accumulate)

        def call() -> None:
            if accumulate:
                upcast_array(out, sums)
            multiply()
            downcast_array(sums, out)

        return call

    def _product(self, a: Array, b: Array, out: Array, *, accumulate: bool = False) -> Call:
        return product(a, b, out, pool=self.pool, scratch=self._transposed, accumulate=accumulate)


def sum_kernel(context: KernelContext, arrays: Arrays, pool: ThreadPool, loops: SumLoops) -> Kernel | None:
    """Makes the kernel for a node's weighted sum; None where its wiring has none."""
    wiring = context.grid.connectivity
    if type(wiring) is connectivity.Full:
        return NodeFullSumKernel(context, arrays, pool, loops)
    if type(wiring) is connectivity.Patch and wiring.is_box and len(context.sources[0].shape) == 3:
        return NodePatchSumKernel(context, arrays, pool, loops)
    return None
