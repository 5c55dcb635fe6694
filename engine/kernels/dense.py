"""Fully connected layers: products of matrices on blocks of columns of the weight `[rows, inputs]`.

An input of any shape is flattened in the order of its grid. The plan says which library computes a product,
and on how many threads (`KernelContext.products`). Results of different cuts and numbers of threads agree
within rounding, not to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.engine.kernels.activations import LOOPS
from partita.engine.kernels.calls import bound, sequence, split_rows
from partita.engine.kernels.kernel import (
    Array,
    Arrays,
    Call,
    Kernel,
    KernelContext,
    PartialKernel,
    no_op,
)
from partita.engine.kernels.products.product import product
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.tiles.scratch import Scratch
from partita.engine.kernels.views import columns, rows_of
from partita.engine.numerics import aligned, compiled, compiled_reassociating, downcast, upcast
from partita.layers.box import Spans


class DenseKernel(Kernel):
    """`state = activation(weight @ input + bias)` for the machine's rows.

    A product in bfloat16 is rounded once. A sum of several products, one for each block of the input, is
    kept in float32 until it is whole.
    """

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        layer, source = context.grid.layer, context.sources[0]
        self._loops, self._is_linear = LOOPS[layer.activation], layer.activation == "linear"
        self._inputs_per_row, self._units_per_row = source.nodes_per_row, context.grid.nodes_per_row
        self._inputs = context.input_rows or (0, source.n_rows)
        n_inputs = (self._inputs[1] - self._inputs[0]) * self._inputs_per_row
        self._weight = arrays.parameters[0].reshape(-1, n_inputs)
        self._state = columns(arrays.output)
        self._scratch: tuple[Array, Array] | None = None
        self._turned = Scratch(1, context.dtype)
        assert context.windows[0][0] <= self._inputs[0] and self._inputs[1] <= context.windows[0][1], (
            f"{context.grid.name} holds only {context.windows[0]} of its input"
        )

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """One product of a block of the weight's columns with a block of the input's rows."""
        rows = block or self._inputs
        weight, inputs = self._weight_of(rows), self._states_of(rows)
        if self._is_exact or (first and last):
            multiply = self._product(weight, inputs, self._state, accumulate=not first)
            return sequence(multiply, self._finish(self._state) if last else no_op)
        term, sums = self._scratch_of_blocks()
        add = bound(_start if first else _continue, term, sums)
        return sequence(self._product(weight, inputs, term), add, self._finish(sums) if last else no_op)

    def backward_activation(self) -> Call:
        """Multiplies the errors by the slope of the activation."""
        if self._is_linear:
            return no_op
        state, errors = self.arrays.output.reshape(-1), self.arrays.own_grad.reshape(-1)
        return split_rows(self.pool, self._loops.multiply, state, errors)

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """The transposed weight times the errors: the sum over the machine's receivers, all at once."""
        out, delta, window = self.arrays.grad_input(source), self._deltas()[0], self.context.grad_windows[0]
        calls = []
        for run in rows:
            weight, place = self._weight_of(run).T, columns(rows_of(out, run, window))
            if self._is_exact or not accumulate:
                calls.append(self._product(weight, columns(delta), place, accumulate=accumulate))
                continue
            term = aligned(place.shape, place.dtype)
            calls += [self._product(weight, columns(delta), term), bound(_continue, term, place)]
        return sequence(*calls)

    @property
    def gradient_dtype(self) -> np.dtype[Any]:
        """As states are stored: a product's own output."""
        return self.context.dtype

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """The outer products of errors and inputs, summed over the examples."""
        deltas, whole, biased = self._deltas()
        start, stop = rows or whole
        delta = columns(rows_of(deltas, (start, stop), whole))
        weight, inputs = out[0].reshape(len(delta), -1), self._states_of(self._inputs)
        multiply = self._product(delta, inputs.T, weight, accumulate=accumulate)
        low, high = max(start, biased[0]), min(stop, biased[1])
        if len(out) == 1 or low >= high:
            return multiply
        of_bias = columns(rows_of(deltas, (low, high), whole))
        add = _add_examples if accumulate else _sum_examples
        return sequence(multiply, split_rows(self.pool, add, of_bias, out[1].reshape(-1)))

    def _deltas(self) -> tuple[Array, tuple[int, int], tuple[int, int]]:
        """Errors of sums, the rows of the layer that they are of, and those whose biases are here."""
        return self.arrays.own_grad, self.context.rows, self.context.rows

    def _states_of(self, rows: tuple[int, int]) -> Array:
        """These rows of the input, `[nodes, example]`."""
        return columns(rows_of(self.arrays.inputs[0], rows, self.context.windows[0]))

    def _product(self, a: Array, b: Array, out: Array, *, accumulate: bool = False) -> Call:
        return product(
            a,
            b,
            out,
            pool=self.pool,
            choices=self.context.products,
            scratch=self._turned,
            accumulate=accumulate,
        )

    def _weight_of(self, rows: tuple[int, int]) -> Array:
        """Its columns for these rows of the input."""
        start, stop = (row - self._inputs[0] for row in rows)
        return self._weight[:, start * self._inputs_per_row : stop * self._inputs_per_row]

    def _scratch_of_blocks(self) -> tuple[Array, Array]:
        """For a sum in blocks: where a product goes, and where the sum is kept, if the state rounds it."""
        if self._scratch is None:
            shape = self._state.shape
            self._scratch = aligned(shape, self._state.dtype), aligned(shape, self.context.master)
        return self._scratch

    @property
    def _is_exact(self) -> bool:
        """Whether a sum may be continued where it is."""
        return self.context.dtype == self.context.master

    def _finish(self, sums: Array) -> Call:
        """Adds the bias and applies the activation, from the sums into the state."""
        bias = self.arrays.parameters[1:]
        if sums is self._state and self._is_linear and not bias:
            return no_op
        constants = bias[0].reshape(-1) if bias else np.zeros(len(sums), self.context.dtype)
        if sums is self._state:
            return split_rows(self.pool, self._loops.finish, sums, constants)
        return split_rows(self.pool, self._loops.finish_into, sums, constants, self._state)


class DenseByInputsKernel(DenseKernel, PartialKernel):
    """The same where each machine has the weights of some inputs, `[all rows, own inputs]`.

    A machine's sum of products is rounded once, and once more where it has the bias of the row, which it adds
    to its own. The sum over the machines is taken in float32 until it is whole.
    """

    def multiply(self, rows: tuple[int, int]) -> Call:
        """One product with the machine's inputs, and the biases that the machine has."""
        whole, partial = (0, self.context.grid.n_rows), self.partial
        out, per_row = columns(rows_of(partial.sums, rows, whole)), self._units_per_row
        weight = self._weight[rows[0] * per_row : rows[1] * per_row]
        multiply = self._product(weight, self._states_of(self._inputs), out)
        low, high = max(rows[0], partial.bias_rows[0]), min(rows[1], partial.bias_rows[1])
        if len(self.arrays.parameters) == 1 or low >= high:
            return multiply
        bias = rows_of(self.arrays.parameters[1], (low, high), partial.bias_rows).reshape(-1)
        biased = columns(rows_of(partial.sums, (low, high), whole))
        return sequence(multiply, split_rows(self.pool, LOOPS["linear"].finish, biased, bias))

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Adds up the sums of all machines, and applies the activation."""
        sums = self._state if self._is_exact else self._scratch_of_blocks()[1]
        terms = map(columns, self.partial.terms)
        adds = (bound(_continue if n else _start, term, sums) for n, term in enumerate(terms))
        return sequence(*adds, self._activate(sums))

    def _activate(self, sums: Array) -> Call:
        if sums is not self._state:
            return split_rows(
                self.pool, self._loops.finish_into, sums, np.zeros(len(sums), self.context.dtype), self._state
            )
        if self._is_linear:
            return no_op
        return bound(self._loops.activate, sums.reshape(-1))

    def _deltas(self) -> tuple[Array, tuple[int, int], tuple[int, int]]:
        deltas, biased = self.partial.grad_output, self.partial.bias_rows
        assert deltas is not None, "nothing comes down to this layer"
        return deltas, (0, self.context.grid.n_rows), biased


def dense_kernel(context: KernelContext, arrays: Arrays, pool: ThreadPool) -> DenseKernel:
    """The kernel of a dense layer, however it is cut."""
    return (DenseKernel if context.input_rows is None else DenseByInputsKernel)(context, arrays, pool)


@compiled
def _start(term: Array, sums: Array) -> None:
    for node in range(sums.shape[0]):
        for e in range(sums.shape[1]):
            sums[node, e] = upcast(term[node, e])


@compiled
def _continue(term: Array, sums: Array) -> None:
    for node in range(sums.shape[0]):
        for e in range(sums.shape[1]):
            sums[node, e] = downcast(upcast(sums[node, e]) + upcast(term[node, e]), sums[node, e])


@compiled_reassociating
def _sum_examples(errors: Array, out: Array) -> None:
    for node in range(errors.shape[0]):
        row, total = errors[node], upcast(errors[node, 0])
        for e in range(1, errors.shape[1]):
            total += upcast(row[e])
        out[node] = downcast(total, out[node])


@compiled_reassociating
def _add_examples(errors: Array, out: Array) -> None:
    for node in range(errors.shape[0]):
        row, total = errors[node], upcast(out[node])
        for e in range(errors.shape[1]):
            total += upcast(row[e])
        out[node] = downcast(total, out[node])
