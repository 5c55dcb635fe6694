"""Fully connected layers on a GPU: products of matrices by torch, on blocks of columns of the weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from partita.engine.kernels.cuda.activations import activate, multiply_by_slope
from partita.engine.kernels.cuda.tensors import TensorKernel, columns, rows_of, tensor_of
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext, PartialKernel
from partita.engine.kernels.thread_pool import ThreadPool
from partita.layers import Dense
from partita.layers.box import Spans


class DenseKernel(TensorKernel):
    """`state = activation(weight @ input + bias)` for the machine's rows.

    As on a CPU, a product in bfloat16 is rounded once, and a sum of several is kept in float32 until it is
    whole.
    """

    layer = Dense

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        self._function, self._per_row = context.grid.layer.activation, context.sources[0].nodes_per_row
        self._inputs = context.input_rows or (0, context.sources[0].n_rows)
        n_inputs = (self._inputs[1] - self._inputs[0]) * self._per_row
        self._weight = self.parameters[0].reshape(-1, n_inputs)
        self._bias = self.parameters[1].reshape(-1, 1) if len(self.parameters) > 1 else None
        self._sums = columns(self.output)
        if self._sums.dtype != self.wide:
            self._sums = self.zeros(*self._sums.shape)

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """One product of a block of the weight's columns with a block of the input's rows."""
        rows = block or self._inputs
        weight, inputs = self._weight_of(rows), self._states_of(rows)
        state, sums, bias = columns(self.output), self._sums, self._bias

        def whole() -> None:
            if bias is None:
                torch.mm(weight, inputs, out=state)
            else:
                torch.addmm(bias, weight, inputs, out=state)
            activate(self._function, state)

        def part() -> None:
            if not first:
                sums.add_(torch.mm(weight, inputs))
            else:
                sums.copy_(torch.mm(weight, inputs))
            if last:
                if bias is not None:
                    sums.add_(bias)
                activate(self._function, sums)
                if sums is not state:
                    state.copy_(sums)

        return whole if first and last else part

    def backward_activation(self) -> Call:
        """Multiplies the errors by the slope of the activation."""
        return multiply_by_slope(self._function, self.output, self.own_grad, self.wide)

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """The transposed weight times the errors: the sum over the machine's receivers, all at once."""
        out, delta, window = self.grad_input(source), columns(self._deltas()[0]), self.context.grad_windows[0]
        pairs = [(self._weight_of(run).T, columns(rows_of(out, run, window))) for run in rows]

        def call() -> None:
            for weight, place in pairs:
                if accumulate:
                    place.addmm_(weight, delta)
                else:
                    torch.mm(weight, delta, out=place)

        return call

    @classmethod
    def make(cls, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> Kernel:
        """The kernel for all inputs, or for a cut by inputs."""
        return (cls if context.input_rows is None else DenseByInputsKernel)(context, arrays, pool)

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
        inputs, weight = self._states_of(self._inputs), tensor_of(out[0]).view(len(delta), -1)
        low, high = max(start, biased[0]), min(stop, biased[1])
        has_bias = len(out) > 1 and low < high
        bias = tensor_of(out[1]).view(-1) if has_bias else None
        of_bias = columns(rows_of(deltas, (low, high) if has_bias else (start, start), whole))

        def call() -> None:
            if accumulate:
                weight.addmm_(delta, inputs.T)
            else:
                torch.mm(delta, inputs.T, out=weight)
            if bias is not None and accumulate:
                bias.add_(torch.sum(of_bias, 1))
            elif bias is not None:
                torch.sum(of_bias, 1, out=bias)

        return call

    def _deltas(self) -> tuple[torch.Tensor, tuple[int, int], tuple[int, int]]:
        """Errors of sums, the rows of the layer that they are of, and those whose biases are here."""
        return self.own_grad, self.context.rows, self.context.rows

    def _states_of(self, rows: tuple[int, int]) -> torch.Tensor:
        """These rows of the input, `[nodes, example]`."""
        return columns(rows_of(self.inputs[0], rows, self.context.windows[0]))

    def _weight_of(self, rows: tuple[int, int]) -> torch.Tensor:
        """Its columns for these rows of the input."""
        start, stop = (row - self._inputs[0] for row in rows)
        return self._weight[:, start * self._per_row : stop * self._per_row]


class DenseByInputsKernel(DenseKernel, PartialKernel):
    """The same where each machine has the weights of some inputs; see the kernel of a CPU."""

    def multiply(self, rows: tuple[int, int]) -> Call:
        """One product with the machine's inputs, and the biases that the machine has."""
        whole, biased, per_row = (
            (0, self.context.grid.n_rows),
            self.partial.bias_rows,
            self.context.grid.nodes_per_row,
        )
        sums, inputs = tensor_of(self.partial.sums), self._states_of(self._inputs)
        out = columns(rows_of(sums, rows, whole))
        weight = self._weight[rows[0] * per_row : rows[1] * per_row]
        low, high = max(rows[0], biased[0]), min(rows[1], biased[1])
        bias = None if low >= high else self._bias
        if bias is not None:
            bias = bias[(low - biased[0]) * per_row : (high - biased[0]) * per_row]
        place = columns(rows_of(sums, (low, max(low, high)), whole))

        def call() -> None:
            torch.mm(weight, inputs, out=out)
            if bias is not None:
                place.add_(bias)

        return call

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Adds up the sums of all machines, and applies the activation."""
        terms = [columns(tensor_of(term)) for term in self.partial.terms]
        state, sums = columns(self.output), self._sums

        def call() -> None:
            sums.copy_(terms[0])
            for term in terms[1:]:
                sums.add_(term)
            activate(self._function, sums)
            if sums is not state:
                state.copy_(sums)

        return call

    def _deltas(self) -> tuple[torch.Tensor, tuple[int, int], tuple[int, int]]:
        deltas = self.partial.grad_output
        assert deltas is not None, "nothing comes down to this layer"
        return tensor_of(deltas), (0, self.context.grid.n_rows), self.partial.bias_rows
