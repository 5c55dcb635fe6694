"""Fully connected layers on a GPU: products of matrices by torch, on blocks of columns of the weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext, PartialKernel
from partita.engine.kernels.on_torch.activations import activate, multiply_by_slope
from partita.engine.kernels.on_torch.tensor_kernel import TensorKernel, columns, rows_of
from partita.engine.kernels.tensors import tensor_of
from partita.engine.kernels.thread_pool import ThreadPool
from partita.layers import Dense
from partita.layers.box import Spans


class DenseKernel(TensorKernel):
    """`output = activation(weight @ input + bias)` for the machine's rows.

    As on a CPU, a product in bfloat16 is rounded once, and a sum of several is kept in float32 until it is
    complete.
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
        """Multiplies a block of the weight's columns by a block of the input's rows."""
        rows = block or self._inputs
        weight, inputs = self._weight_of(rows), self._input(rows)
        output, sums, bias = columns(self.output), self._sums, self._bias

        def whole() -> None:
            if bias is None:
                torch.mm(weight, inputs, out=output)
            else:
                torch.addmm(bias, weight, inputs, out=output)
            activate(self._function, output)

        def part() -> None:
            if not first:
                sums.add_(torch.mm(weight, inputs))
            else:
                sums.copy_(torch.mm(weight, inputs))
            if last:
                if bias is not None:
                    sums.add_(bias)
                activate(self._function, sums)
                if sums is not output:
                    output.copy_(sums)

        return whole if first and last else part

    def backward_activation(self) -> Call:
        """Multiplies the gradient by the slope of the activation."""
        return multiply_by_slope(self._function, self.output, self.own_grad, self.wide)

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Multiplies the transposed weight by the gradient: the sum over the machine's receivers at once."""
        out, grad, window = self.grad_input(source), columns(self._grad()[0]), self.context.grad_windows[0]
        pairs = [(self._weight_of(span).T, columns(rows_of(out, span, window))) for span in rows]

        def call() -> None:
            for weight, place in pairs:
                if accumulate:
                    place.addmm_(weight, grad)
                else:
                    torch.mm(weight, grad, out=place)

        return call

    @classmethod
    def make(cls, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> Kernel:
        """The kernel for all inputs, or for a cut by inputs."""
        return (cls if context.input_rows is None else DenseByInputsKernel)(context, arrays, pool)

    @property
    def gradient_dtype(self) -> np.dtype[Any]:
        """The storage type: that of a product."""
        return self.context.dtype

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Sums the outer products of gradients and inputs over the examples."""
        grads, whole, biased = self._grad()
        start, stop = rows or whole
        grad = columns(rows_of(grads, (start, stop), whole))
        inputs, weight = self._input(self._inputs), tensor_of(out[0]).view(len(grad), -1)
        low, high = max(start, biased[0]), min(stop, biased[1])
        has_bias = len(out) > 1 and low < high
        bias = tensor_of(out[1]).view(-1) if has_bias else None
        of_bias = columns(rows_of(grads, (low, high) if has_bias else (start, start), whole))

        def call() -> None:
            if accumulate:
                weight.addmm_(grad, inputs.T)
            else:
                torch.mm(grad, inputs.T, out=weight)
            if bias is not None and accumulate:
                bias.add_(torch.sum(of_bias, 1))
            elif bias is not None:
                torch.sum(of_bias, 1, out=bias)

        return call

    def _grad(self) -> tuple[torch.Tensor, tuple[int, int], tuple[int, int]]:
        """The gradient of the sums, the rows of the layer that it covers, and those whose biases are here."""
        return self.own_grad, self.context.rows, self.context.rows

    def _input(self, rows: tuple[int, int]) -> torch.Tensor:
        return columns(rows_of(self.inputs[0], rows, self.context.windows[0]))

    def _weight_of(self, rows: tuple[int, int]) -> torch.Tensor:
        """The columns of the weight for these rows of the input."""
        start, stop = (row - self._inputs[0] for row in rows)
        return self._weight[:, start * self._per_row : stop * self._per_row]


class DenseByInputsKernel(DenseKernel, PartialKernel):
    """The same where each machine has the weights of some inputs; see the kernel of a CPU."""

    def multiply(self, rows: tuple[int, int]) -> Call:
        """Multiplies by the machine's inputs, and adds the biases that the machine has."""
        whole, biased, per_row = (
            (0, self.context.grid.n_rows),
            self.partial.bias_rows,
            self.context.grid.nodes_per_row,
        )
        sums, inputs = tensor_of(self.partial.sums), self._input(self._inputs)
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
        output, sums = columns(self.output), self._sums

        def call() -> None:
            sums.copy_(terms[0])
            for term in terms[1:]:
                sums.add_(term)
            activate(self._function, sums)
            if sums is not output:
                output.copy_(sums)

        return call

    def _grad(self) -> tuple[torch.Tensor, tuple[int, int], tuple[int, int]]:
        grads = self.partial.grad_output
        assert grads is not None, "this layer has no backward pass"
        return tensor_of(grads), (0, self.context.grid.n_rows), self.partial.bias_rows
