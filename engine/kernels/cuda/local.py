"""Locally connected layers on a GPU: the kernels of `local_loops` on a machine's rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from partita.engine.kernels.calls import sequence
from partita.engine.kernels.cuda.activations import activate, multiply_by_slope
from partita.engine.kernels.cuda.arrays import shared
from partita.engine.kernels.cuda.local_loops import loops, threads
from partita.engine.kernels.cuda.tensor_kernel import TensorKernel, accumulated, rows_of
from partita.engine.kernels.kernel import Array, Arrays, Call, KernelContext
from partita.engine.kernels.patches import PatchGeometry
from partita.engine.kernels.tensors import array_of, tensor_of
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.numerics.cuda import bound
from partita.layers import LocallyConnected2D
from partita.layers.box import Spans
from partita.layers.connectivity import Patch


class LocallyConnectedKernel(TensorKernel):
    """`output = activation(bias + sum over the patch of weight * input)` for the machine's rows."""

    layer = LocallyConnected2D

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        layer = context.grid.layer
        assert isinstance(context.grid.connectivity, Patch)
        self._function, self._loops = layer.activation, loops(context.master)
        self._geometry = PatchGeometry.of(context.grid.connectivity, context.sources[0].shape)
        self._inputs = shared(_picture(self.inputs[0]))
        self._weight = shared(self._shaped(self.parameters[0]))
        self._device = self.output.device.index

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Computes the sums and their activations."""
        return self.forward_rows((self.context.rows,))

    def forward_rows(self, rows: Spans) -> Call:
        """Computes sums and activations for some of the machine's rows."""
        return sequence(*map(self._forward_run, rows))

    def _forward_run(self, run: tuple[int, int]) -> Call:
        own = self.context.rows
        output = rows_of(self.output, run, own)
        sums = output if output.dtype == self.wide else self.zeros(*output.shape)
        if len(self.parameters) > 1:
            bias = rows_of(self.parameters[1].reshape(self.output.shape[:-1]), run, own).reshape(-1)
        else:
            bias = self.zeros(output.shape[:-1].numel(), dtype=output.dtype)
        weight = shared(array_of(rows_of(tensor_of(self._shaped(self.parameters[0])), run, own)))
        given = self._inputs, weight, shared(array_of(bias)), shared(array_of(sums))
        places = run[0], self.context.windows[0][0], self._geometry
        n_threads = threads(len(bias), self.context.batch)
        add = bound(self._loops.sums, n_threads, *given, *places, device=self._device)

        def finish() -> None:
            activate(self._function, sums)
            if sums is not output:
                output.copy_(sums)

        return sequence(add, finish)

    def backward_activation(self) -> Call:
        """Multiplies the gradient by the slope of the activation."""
        return multiply_by_slope(self._function, self.output, self.own_grad, self.wide)

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Sums, for each node of the input, over the places whose patches hold it, in ascending order."""
        picture, (window, _) = self.grad_input(0), self.context.grad_windows[0]
        out, grad, cells = (
            shared(_picture(picture)),
            shared(array_of(self.own_grad)),
            picture[0, :, :, 0].numel(),
        )
        calls = []
        for run in rows:
            given = out, self._weight, grad, run, window, self.context.rows, accumulate, self._geometry
            n_threads = threads((run[1] - run[0]) * cells, self.context.batch)
            calls.append(bound(self._loops.errors, n_threads, *given, device=self._device))
        return sequence(*calls)

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Sums products of gradients and inputs over the examples; zero where a patch lies on padding."""
        if accumulate:
            return accumulated(lambda terms: self.backward_parameters(terms, rows), out)
        asked = rows or self.context.rows
        grad, weight = rows_of(self.own_grad, asked, self.context.rows), self._shaped(tensor_of(out[0]))
        given = self._inputs, shared(array_of(grad)), shared(weight)
        places = asked[0], self.context.windows[0][0], self._geometry
        n_weights, filters = tensor_of(out[0]).numel(), self.context.grid.shape[2]
        n_threads = threads(n_weights // filters, filters)
        multiply = bound(self._loops.gradient, n_threads, *given, *places, device=self._device)
        if len(out) == 1:
            return multiply
        bias = tensor_of(out[1]).view(grad.shape[:-1])

        def add() -> None:
            torch.sum(grad, -1, dtype=bias.dtype, out=bias)

        return sequence(multiply, add)

    def _shaped(self, weight: torch.Tensor) -> Array:
        geometry, (_, columns, filters) = self._geometry, self.context.grid.shape
        run = geometry.size_x * geometry.channels
        return array_of(weight.view(-1, columns, filters, geometry.size_y, run))


def _picture(tensor: torch.Tensor) -> Array:
    """`[row, column * channel, example]`."""
    height, width, channels, batch = tensor.shape
    return array_of(tensor.view(height, width * channels, batch))
