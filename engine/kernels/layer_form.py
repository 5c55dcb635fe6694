"""The kernel of any layer that writes `forward`: its arithmetic in torch, on any device.

Autograd makes the backward pass unless the layer writes `backward`. All gradients of a micro-batch are
computed at once, when the first of them is asked for. Importing this imports torch.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from partita.engine.kernels.calls import sequence
from partita.engine.kernels.counted import random_bits
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext, Numbered, OneStep
from partita.engine.kernels.tensors import as_tensor, use_threads
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.numerics.philox import key_of
from partita.layers.box import Box, BoxSet, Span, Spans
from partita.layers.contract import Step

_Gradients: TypeAlias = tuple[Sequence[Any], Sequence[Any]]
"""Gradients of the inputs, and of the parameters; None where there is none."""


class LayerFormKernel(Kernel):
    """A layer's `forward` and `backward` over the machine's rows.

    Numbers in bfloat16 are computed in float32 and rounded once.
    """

    gradient_by_rows = False
    follows_steps = True

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        self._layer, self._windows = context.grid.layer, tuple(map(self._window, range(len(context.sources))))
        given = zip(arrays.inputs, self._windows, context.windows, strict=True)
        self._inputs = tuple(as_tensor(array[a - low : b - low]) for array, (a, b), (low, _) in given)
        self._parameters = tuple(map(as_tensor, arrays.parameters))
        self._output = as_tensor(arrays.output)
        self._lock = threading.Lock()
        self._gradients: _Gradients | None = None
        self.begin(OneStep(), micro_batch=0, first_example=0)

    def _window(self, source: int) -> Span:
        """The rows of an input that feed the machine's rows."""
        context, shape = self.context, self.context.sources[source].shape
        fed = context.grid.connectivity.source_rows(Box((context.rows,)), context.grid.shape, shape)
        return fed.hull[0] if fed else (context.windows[source][0],) * 2

    def begin(self, examples: Numbered, *, micro_batch: int, first_example: int) -> None:
        """Takes over the examples of the next forward pass; the backward pass after it is of the same."""
        grid, context = self.context.grid, self.context

        def random() -> torch.Tensor:
            numbers = examples.numbers(first_example, context.batch)
            key = key_of(examples.seed, grid.name)
            bits = random_bits(key, examples.visit, numbers, self._nodes(), self._output.device)
            return bits.reshape(self._output.shape)

        self._step = Step(
            examples.step,
            micro_batch,
            context.training,
            first_example,
            context.rows,
            grid.shape,
            tuple(source.shape for source in context.sources),
            self._windows,
            torch,
            random,
        )

    def _nodes(self) -> list[tuple[int, int]]:
        """The machine's nodes as ranges `[start, stop)` of their numbers in the whole layer."""
        (first, last), shape = self.context.rows, self.context.grid.shape
        if self.context.columns is None:
            per_row = math.prod(shape[1:])
            return [(first * per_row, last * per_row)]
        (left, width), depth = self.context.columns, math.prod(shape[2:])
        starts = ((row * width + left) * depth for row in range(first, last))
        return [(start, start + shape[1] * depth) for start in starts]

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Computes the machine's rows, and keeps what the backward pass needs."""
        assert block is None and first and last, f"{self.context.label} splits no sum"
        learns = self.arrays.grad_output is not None

        def call() -> None:
            use_threads(self.context.threads)
            by_autograd = learns and not self._layer.has_backward
            inputs = tuple(self._leaf(tensor, by_autograd) for tensor in self._inputs)
            parameters = tuple(self._leaf(tensor, by_autograd) for tensor in self._parameters)
            with torch.set_grad_enabled(by_autograd):
                output = self._layer.forward(self._step, inputs, parameters)
            self._check(output)
            self._output.copy_(output.detach())
            self._played = inputs, parameters, output
            self._gradients = None

        return call

    def _leaf(self, tensor: torch.Tensor, learns: bool) -> torch.Tensor:
        """A tensor without a history, in the precision of sums; integers as they are."""
        wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor.data
        return wide.requires_grad_(learns and wide.is_floating_point())

    def _check(self, output: object) -> None:
        shape, expected = getattr(output, "shape", None), tuple(self._output.shape)
        if shape is None or tuple(shape) != expected:
            found = type(output).__name__ if shape is None else f"a tensor of shape {tuple(shape)}"
            raise ValueError(
                f"{self.context.label}: forward returned {found} for rows {self.context.rows}; return their "
                f"output, a tensor of shape {expected}: (rows, other node axes ..., example)"
            )

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Writes the gradient of these rows of an input; zero where they feed no row of the machine."""
        out, window = as_tensor(self.arrays.grad_input(source)), self.context.grad_windows[source]
        (low, _), fed = self._windows[source], BoxSet.of_rows(*rows) & BoxSet.of_rows(self._windows[source])
        alone = () if accumulate else (BoxSet.of_rows(*rows) - fed).spans

        def call() -> None:
            found = self._all_gradients()[0][source]
            for start, stop in alone if found is not None or accumulate else rows:
                out[start - window[0] : stop - window[0]].zero_()
            for start, stop in fed.spans if found is not None else ():
                place = out[start - window[0] : stop - window[0]]
                _put(place, found[start - low : stop - low], accumulate)

        return call

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Writes the gradients of the parameters, summed over the examples."""
        places = list(map(as_tensor, out))

        def call() -> None:
            for place, found in zip(places, self._all_gradients()[1], strict=True):
                if found is not None:
                    _put(place, found.reshape(place.shape), accumulate)
                elif not accumulate:
                    place.zero_()

        return sequence(call)

    def _all_gradients(self) -> _Gradients:
        """The gradients of all inputs and of all parameters; computed by the first thread that asks."""
        with self._lock:
            if self._gradients is None:
                use_threads(self.context.threads)
                self._gradients = self._compute_gradients()
            return self._gradients

    def _compute_gradients(self) -> _Gradients:
        inputs, parameters, output = self._played
        grad = as_tensor(self.arrays.own_grad).to(output.dtype)
        if self._layer.has_backward:
            with torch.no_grad():
                return self._layer.backward(self._step, inputs, parameters, output, grad)
        wanted = [tensor for tensor in (*inputs, *parameters) if tensor.requires_grad]
        if not wanted or not output.requires_grad:
            return (None,) * len(inputs), (None,) * len(parameters)
        of = dict(
            zip(map(id, wanted), torch.autograd.grad(output, wanted, grad, allow_unused=True), strict=True)
        )
        return tuple(of.get(id(one)) for one in inputs), tuple(of.get(id(one)) for one in parameters)


def _put(place: torch.Tensor, found: torch.Tensor, accumulate: bool) -> None:
    if accumulate:
        place.add_(found)
    else:
        place.copy_(found)
