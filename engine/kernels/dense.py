"""Fully connected layers: products of matrices on blocks of columns of the weight `[rows, inputs]`.

An input of any shape is flattened in the order of its grid. The plan says which library computes a product,
and on how many threads (`KernelContext.products`). Results of different cuts and numbers of threads agree
within rounding, not to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from partita.engine.kernels.activations import LOOPS, multiply_by_slope
from partita.engine.kernels.calls import bound, sequence, split_rows
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext, PartialKernel, no_op
from partita.engine.kernels.local_loops import accumulate_bias
from partita.engine.kernels.products.product import product
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.tiles.scratch import Scratch
from partita.engine.kernels.views import columns, rows_of
from partita.engine.numerics import (
    add_array,
    aligned,
    compiled_reassociating,
    downcast,
    upcast,
    upcast_array,
)
from partita.layers import Dense
from partita.layers.box import Spans


class DenseKernel(Kernel):
    """`output = activation(weight @ input + bias)` for the machine's rows.

    A product in bfloat16 is rounded once. A sum of several products, one for each block of the input, is
    kept in float32 until it is complete.
    """

    layer = Dense
    gradient_by_threads = True

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        self._function, source = context.grid.layer.activation, context.sources[0]
        self._loops, self._inputs_per_row = LOOPS[self._function], source.nodes_per_row
        self._inputs = context.input_rows or (0, source.n_rows)
        n_inputs = (self._inputs[1] - self._inputs[0]) * self._inputs_per_row
        self._weight = arrays.parameters[0].reshape(-1, n_inputs)
        self._output = columns(arrays.output)
        self._block_scratch: tuple[Array, Array] | None = None
        self._transposed = Scratch(pool.threads, context.dtype)
        self._is_exact = context.dtype == context.master  # so that a sum may be continued where it is
        assert context.windows[0][0] <= self._inputs[0] and self._inputs[1] <= context.windows[0][1], (
            f"{context.grid.name} holds only {context.windows[0]} of its input"
        )

    @classmethod
    def make(cls, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> Kernel:
        """The kernel for all inputs, or for a cut by inputs."""
        return (cls if context.input_rows is None else DenseByInputsKernel)(context, arrays, pool)

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Multiplies a block of the weight's columns by a block of the input's rows."""
        rows = block or self._inputs
        weight, inputs = self._weight_of(rows), self._input(rows)
        if self._is_exact or (first and last):
            multiply = self._product(weight, inputs, self._output, accumulate=not first)
            return sequence(multiply, self._finish(self._output) if last else no_op)
        term, sums = self._scratch_of_blocks()
        add = _prepared(upcast_array, term, sums) if first else _prepared(add_array, sums, term)
        return sequence(self._product(weight, inputs, term), add, self._finish(sums) if last else no_op)

    def backward_activation(self) -> Call:
        """Multiplies the gradient by the slope of the activation."""
        return multiply_by_slope(self._function, self)

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Multiplies the transposed weight by the gradient: the sum over the machine's receivers at once."""
        out, grad, window = (
            self.arrays.grad_input(source),
            columns(self._grad()[0]),
            self.context.grad_windows[0],
        )
        calls = []
        for span in rows:
            weight, place = self._weight_of(span).T, columns(rows_of(out, span, window))
            if self._is_exact or not accumulate:
                calls.append(self._product(weight, grad, place, accumulate=accumulate))
                continue
            term = aligned(place.shape, place.dtype)
            calls += [self._product(weight, grad, term), _prepared(add_array, place, term)]
        return sequence(*calls)

    @property
    def gradient_dtype(self) -> np.dtype[Any]:
        """The storage type: that of a product."""
        return self.context.dtype

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Sums the outer products of gradients and inputs over the examples."""
        grads, whole, bias_rows = self._grad()
        start, stop = rows or whole
        grad = columns(rows_of(grads, (start, stop), whole))
        weight, inputs = out[0].reshape(len(grad), -1), self._input(self._inputs)
        multiply = self._product(grad, inputs.T, weight, accumulate=accumulate)
        low, high = max(start, bias_rows[0]), min(stop, bias_rows[1])
        if len(out) == 1 or low >= high:
            return multiply
        of_bias = columns(rows_of(grads, (low, high), whole))
        add = accumulate_bias if accumulate else _sum_examples
        return sequence(multiply, split_rows(self.pool, add, of_bias, out[1].reshape(-1)))

    def _grad(self) -> tuple[Array, tuple[int, int], tuple[int, int]]:
        """The gradient of the sums, the rows of the layer that it covers, and those whose biases are here."""
        return self.arrays.own_grad, self.context.rows, self.context.rows

    def _input(self, rows: tuple[int, int]) -> Array:
        return columns(rows_of(self.arrays.inputs[0], rows, self.context.windows[0]))

    def _product(self, a: Array, b: Array, out: Array, *, accumulate: bool = False) -> Call:
        choices, scratch = self.context.products, self._transposed
        return product(a, b, out, pool=self.pool, choices=choices, scratch=scratch, accumulate=accumulate)

    def _weight_of(self, rows: tuple[int, int]) -> Array:
        """The columns of the weight for these rows of the input."""
        start, stop = (row - self._inputs[0] for row in rows)
        return self._weight[:, start * self._inputs_per_row : stop * self._inputs_per_row]

    def _scratch_of_blocks(self) -> tuple[Array, Array]:
        """For a sum in blocks: an array for a product, and one for the sum if the output would round it."""
        if self._block_scratch is None:
            shape = self._output.shape
            self._block_scratch = aligned(shape, self._output.dtype), aligned(shape, self.context.master)
        return self._block_scratch

    def _finish(self, sums: Array) -> Call:
        """Adds the bias and applies the activation, from the sums into the output."""
        bias = self.arrays.parameters[1:]
        if sums is self._output and self._function == "linear" and not bias:
            return no_op
        constants = bias[0].reshape(-1) if bias else np.zeros(len(sums), self.context.dtype)
        if sums is self._output:
            return split_rows(self.pool, self._loops.finish, sums, constants)
        return split_rows(self.pool, self._loops.finish_into, sums, constants, self._output)


class DenseByInputsKernel(DenseKernel, PartialKernel):
    """The same where each machine has the weights of some inputs, `[all rows, own inputs]`.

    A machine's sum of products is rounded once, and once more where it has the bias of the row, which it adds
    to its own. The sum over the machines is taken in float32 until it is complete.
    """

    def multiply(self, rows: tuple[int, int]) -> Call:
        """Multiplies by the machine's inputs, and adds the biases that the machine has."""
        whole, partial, per_row = (0, self.context.grid.n_rows), self.partial, self.context.grid.nodes_per_row
        weight = self._weight[rows[0] * per_row : rows[1] * per_row]
        out = columns(rows_of(partial.sums, rows, whole))
        multiply = self._product(weight, self._input(self._inputs), out)
        low, high = max(rows[0], partial.bias_rows[0]), min(rows[1], partial.bias_rows[1])
        if len(self.arrays.parameters) == 1 or low >= high:
            return multiply
        bias = rows_of(self.arrays.parameters[1], (low, high), partial.bias_rows).reshape(-1)
        biased = columns(rows_of(partial.sums, (low, high), whole))
        return sequence(multiply, split_rows(self.pool, LOOPS["linear"].finish, biased, bias))

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Adds up the sums of all machines, and applies the activation."""
        sums = self._output if self._is_exact else self._scratch_of_blocks()[1]
        begun, *terms = map(columns, self.partial.terms)
        adds = (_prepared(add_array, sums, term) for term in terms)
        return sequence(_prepared(upcast_array, begun, sums), *adds, self._activate(sums))

    def _activate(self, sums: Array) -> Call:
        if sums is not self._output:
            no_bias = np.zeros(len(sums), self.context.dtype)
            return split_rows(self.pool, self._loops.finish_into, sums, no_bias, self._output)
        return no_op if self._function == "linear" else bound(self._loops.activate, sums.reshape(-1))

    def _grad(self) -> tuple[Array, tuple[int, int], tuple[int, int]]:
        grad, bias_rows = self.partial.grad_output, self.partial.bias_rows
        assert grad is not None, "this layer has no backward pass"
        return grad, (0, self.context.grid.n_rows), bias_rows


def _prepared(function: Callable[..., object], *arrays: Array) -> Call:
    """Prepares a function of whole arrays, and compiles what it needs for their types."""
    function(*(array[:0] for array in arrays))
    return partial(function, *arrays)  # type: ignore[return-value]


@compiled_reassociating
def _sum_examples(grad: Array, out: Array) -> None:
    for node in range(grad.shape[0]):
        row, total = grad[node], upcast(grad[node, 0])
        for e in range(1, grad.shape[1]):
            total += upcast(row[e])
        out[node] = downcast(total, out[node])
