"""The kernel of a layer that is cut by its inputs, by its `partial` and `finish`, on any device.

Importing this imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from partita.engine.kernels.form_backward import Root, derived, root
from partita.engine.kernels.form_piece import Gradients
from partita.engine.kernels.kernel import Arrays, Call, KernelContext, PartialKernel
from partita.engine.kernels.layer_form import LayerFormKernel
from partita.engine.kernels.tensors import TYPES, as_tensor, leaf, use_threads
from partita.engine.kernels.thread_pool import ThreadPool
from partita.layers.box import Span

_Product: TypeAlias = tuple[tuple[torch.Tensor, ...], Root]
"""The input and the weight, and where the backward pass of their sums begins."""


class PartialFormKernel(LayerFormKernel, PartialKernel):
    """A layer's `partial` and `finish`, where each machine has the weights of some inputs."""

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        assert context.input_rows is not None, f"{context.label} is not cut by its inputs"
        self._layer, self._windows, low = context.grid.layer, (context.input_rows,), context.windows[0][0]
        self._input = as_tensor(arrays.inputs[0][context.input_rows[0] - low : context.input_rows[1] - low])
        self._needs_grad = bool(arrays.grad_inputs) and arrays.grad_inputs[0] is not None
        self._parameters = tuple(map(as_tensor, arrays.parameters))
        self._shares = context.grid.shares_weights
        self._products: dict[Span, _Product] = {}

    def multiply(self, rows: Span) -> Call:
        """Sums over the machine's inputs, and adds the biases that the machine has."""
        place = as_tensor(self.partial.sums)[slice(*rows)]
        biased, weights, grad = self._biased(rows), self._parameters[:1], self.partial.grad_output
        grads = None if grad is None else as_tensor(grad)[slice(*rows)]
        weights = weights if self._shares else tuple(weight[slice(*rows)] for weight in weights)

        def call() -> None:
            use_threads(self.context.threads)
            learns, wide = grads is not None, self._layer.rounds_products
            given = leaf(self._input, learns and self._needs_grad, wide)
            used = tuple(leaf(weight, learns, wide) for weight in weights)
            with torch.set_grad_enabled(learns):
                sums = self._layer.partial(self.step(rows, self._windows, place), (given,), used)
            place.copy_(sums.detach())
            for bias, own, _ in biased:
                place[own] += bias.reshape(len(bias), *(1,) * (place.dim() - 1 - self._shares))
            if grads is not None:
                self._products[rows] = (given, *used), root(sums, grads)

        return call

    def _biased(self, rows: Span) -> list[tuple[torch.Tensor, slice, slice]]:
        """The biases that the machine has of these rows, and their places among these and in the layer.

        Shared ones are of all rows, and the first machine's.
        """
        first, stop = self.partial.bias_rows
        if self._shares:
            every = [bias for bias in self._parameters[1:] if len(bias)]
            return [(bias, slice(0, rows[1] - rows[0]), slice(*rows)) for bias in every]
        low, high = max(rows[0], first), min(rows[1], stop)
        return [
            (bias[low - first : high - first], slice(low - rows[0], high - rows[0]), slice(low, high))
            for bias in self._parameters[1:]
            if low < high
        ]

    def forward(self, *, block: Span | None = None, first: bool = True, last: bool = True) -> Call:
        """Adds up the sums of all machines, and finishes them."""
        terms, output = [as_tensor(term) for term in self.partial.terms], as_tensor(self.arrays.output)
        wide, grad = TYPES[self.context.master], self.arrays.grad_output

        def call() -> None:
            use_threads(self.context.threads)
            self._free()
            sums = terms[0].to(wide, copy=True)
            for term in terms[1:]:
                sums += term
            with torch.set_grad_enabled(grad is not None):
                step = self.step(self.context.rows, self._windows, output)
                found = self._layer.finish(step, sums.requires_grad_(grad is not None))
                if grad is not None:
                    self._finished = sums, root(found, as_tensor(grad))
            output.copy_(found.detach())

        return call

    def backward_activation(self) -> Call:
        """Turns the gradient of the output into that of the sums."""
        grad = as_tensor(self.arrays.own_grad)

        def call() -> None:
            sums, begin = self._finished
            (found,) = derived([begin], [sums])
            assert found is not None, "the output depends on its sums"
            grad.copy_(found)

        return call

    def _derived(self) -> Sequence[Gradients]:
        """The gradients of the machine's inputs and parameters, by that of all sums."""
        assert self.partial.grad_output is not None, "this layer has no backward pass"
        grads = as_tensor(self.partial.grad_output)
        of_input: torch.Tensor | None = None
        of_weights: list[torch.Tensor] = []
        for _, (given, begin) in sorted(self._products.items(), key=lambda one: one[0]):
            wanted = [one for one in given if one.requires_grad]
            if wanted:
                found = [one for one in derived([begin], wanted) if one is not None]
                assert len(found) == len(wanted), "sums depend on the input and on the weight"
                if given[0].requires_grad:
                    of_input = found[0] if of_input is None else of_input + found[0]
                    found = found[1:]
                of_weights += found
        if self._shares:
            of_weights = [sum(of_weights[1:], start=of_weights[0])]
        joined = [torch.cat(of_weights)] if of_weights else []
        return [((of_input,), (*joined, *self._bias_gradients(grads)))]

    def _bias_gradients(self, grads: torch.Tensor) -> list[torch.Tensor | None]:
        """The sums over the examples, and the places that share a bias; None on a machine without biases."""
        wide, biased = TYPES[self.context.master], self._biased((0, self.context.grid.n_rows))
        axes = [axis for axis in range(grads.dim()) if axis != int(self._shares)]
        found: list[torch.Tensor | None] = [grads[there].to(wide).sum(axes) for _, _, there in biased]
        return found or [None] * len(self._parameters[1:])

    def _all_spans(self, source: int) -> list[tuple[Span, Span]]:
        return [(self._windows[source], (0, self.context.batch))]

    def _slices(self) -> list[tuple[slice, ...]]:
        return [(slice(None),) * len(self._parameters)]
