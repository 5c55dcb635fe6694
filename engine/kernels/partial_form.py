"""The kernel of a layer that is cut by its inputs, by its `partial` and `finish`, on any device.

Importing this imports torch.
"""

from __future__ import annotations

import torch

from partita.engine.kernels.kernel import Arrays, Call, KernelContext, PartialKernel
from partita.engine.kernels.layer_form import Gradients, LayerFormKernel
from partita.engine.kernels.tensors import TYPES, as_tensor, leaf, use_threads
from partita.engine.kernels.thread_pool import ThreadPool
from partita.layers.box import Span


class PartialFormKernel(LayerFormKernel, PartialKernel):
    """A layer's `partial` and `finish`, where each machine has the weights of some inputs."""

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        assert context.input_rows is not None, f"{context.label} is not cut by its inputs"
        self._layer, self._windows, low = context.grid.layer, (context.input_rows,), context.windows[0][0]
        self._input = as_tensor(arrays.inputs[0][context.input_rows[0] - low : context.input_rows[1] - low])
        self._parameters = tuple(map(as_tensor, arrays.parameters))
        self._products: dict[Span, tuple[torch.Tensor, ...]] = {}

    def multiply(self, rows: Span) -> Call:
        """Sums over the machine's inputs, and adds the biases that the machine has."""
        place, weight, biased = (
            as_tensor(self.partial.sums)[slice(*rows)],
            self._parameters[0],
            self._biased(rows),
        )

        def call() -> None:
            use_threads(self.context.threads)
            learns, wide = self.partial.grad_output is not None, self._layer.rounds_products
            given = tuple(leaf(one, learns, wide) for one in (self._input, weight[slice(*rows)]))
            with torch.set_grad_enabled(learns):
                sums = self._layer.partial(self.step(rows, self._windows, place), given[:1], given[1:])
            place.copy_(sums.detach())
            for bias, own, _ in biased:
                place[own] += bias.unsqueeze(-1)
            self._products[rows] = (*given, sums)

        return call

    def _biased(self, rows: Span) -> list[tuple[torch.Tensor, slice, slice]]:
        """The biases that the machine has of these rows, and their places among these and in the layer."""
        low, high = max(rows[0], self.partial.bias_rows[0]), min(rows[1], self.partial.bias_rows[1])
        first = self.partial.bias_rows[0]
        return [
            (bias[low - first : high - first], slice(low - rows[0], high - rows[0]), slice(low, high))
            for bias in self._parameters[1:]
            if low < high
        ]

    def forward(self, *, block: Span | None = None, first: bool = True, last: bool = True) -> Call:
        """Adds up the sums of all machines, and finishes them."""
        terms, output = [as_tensor(term) for term in self.partial.terms], as_tensor(self.arrays.output)
        wide = TYPES[self.context.master]

        def call() -> None:
            use_threads(self.context.threads)
            self._gradients = None
            sums = terms[0].to(wide, copy=True)
            for term in terms[1:]:
                sums += term
            learns = self.arrays.grad_output is not None
            with torch.set_grad_enabled(learns):
                step = self.step(self.context.rows, self._windows, output)
                found = self._layer.finish(step, sums.requires_grad_(learns))
            output.copy_(found.detach())
            self._finished = sums, found

        return call

    def backward_activation(self) -> Call:
        """Turns the gradient of the output into that of the sums."""
        grad = as_tensor(self.arrays.own_grad)

        def call() -> None:
            sums, found = self._finished
            grad.copy_(torch.autograd.grad(found, sums, grad.to(found.dtype))[0])

        return call

    def _derived(self) -> list[Gradients]:
        """The gradients of the machine's inputs and parameters, by that of all sums."""
        assert self.partial.grad_output is not None, "this layer has no backward pass"
        grads, products = as_tensor(self.partial.grad_output), sorted(self._products.items())
        found = [
            torch.autograd.grad(sums, given, grads[slice(*rows)].to(sums.dtype))
            for rows, (*given, sums) in products
        ]
        whole = (0, self.context.grid.n_rows)
        biases = [grads[there].to(TYPES[self.context.master]).sum(-1) for _, _, there in self._biased(whole)]
        of_input = sum((one for one, _ in found[1:]), start=found[0][0])
        return [((of_input,), (torch.cat([weight for _, weight in found]), *biases))]

    def _all_windows(self) -> list[tuple[Span, ...]]:
        return [self._windows]

    def _slices(self) -> list[tuple[slice, ...]]:
        return [(slice(None),) * len(self._parameters)]
