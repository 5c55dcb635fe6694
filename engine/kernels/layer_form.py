"""The kernel of any layer that writes `forward`: its arithmetic in torch, on any device.

Autograd makes the backward pass unless the layer writes `backward`. All gradients of a micro-batch are
computed at once, when the first of them is asked for. Importing this imports torch.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from partita.engine.kernels.counted import random_bits
from partita.engine.kernels.kernel import (
    Array,
    Arrays,
    Call,
    Kernel,
    KernelContext,
    Numbered,
    OneStep,
    no_op,
)
from partita.engine.kernels.tensors import as_tensor, use_threads
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.numerics.philox import key_of
from partita.layers.box import Box, Span, Spans
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
        self._pieces: dict[Span, _Piece] = {}
        self._lock = threading.Lock()
        self._gradients: list[_Gradients] | None = None
        self.begin(OneStep(), micro_batch=0, first_example=0)

    def begin(self, examples: Numbered, *, micro_batch: int, first_example: int) -> None:
        """Takes over the examples of the next forward pass; the backward pass after it is of the same."""
        self._examples, self._micro_batch, self._first_example = examples, micro_batch, first_example

    def step(self, piece: _Piece) -> Step:
        """The circumstances of the next call, for some rows."""
        grid, context = self.context.grid, self.context
        examples, first = self._examples, self._first_example

        def random() -> torch.Tensor:
            numbers, nodes = examples.numbers(first, context.batch), context.node_ranges(piece.rows)
            key, device = key_of(examples.seed, grid.name), piece.output.device
            return random_bits(key, examples.visit, numbers, nodes, device).reshape(piece.output.shape)

        return Step(
            examples.step,
            self._micro_batch,
            context.training,
            first,
            rows=piece.rows,
            shape=grid.shape,
            sources=tuple(source.shape for source in context.sources),
            windows=piece.windows,
            wiring=grid.connectivity,
            torch=torch,
            random=random,
        )

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Computes the machine's rows, when all blocks of a sum are there."""
        return self.forward_rows((self.context.rows,)) if last else no_op

    def forward_rows(self, rows: Spans) -> Call:
        """Computes some of the machine's rows."""
        pieces = [self._pieces.setdefault(run, _Piece(self, run)) for run in rows]

        def call() -> None:
            use_threads(self.context.threads)
            self._gradients = None
            for piece in pieces:
                piece.play()

        return call

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Writes the gradient of these rows of an input; zero where they feed no row of the machine."""
        out, window = as_tensor(self.arrays.grad_input(source)), self.context.grad_windows[source]
        places = [out[start - window[0] : stop - window[0]] for start, stop in rows]

        def call() -> None:
            if not accumulate and len(self._pieces) == 1 and len(rows) == 1:
                (piece,), ((found, _),) = self._pieces.values(), self._all_gradients()
                if found[source] is not None and piece.windows[source] == rows[0]:
                    places[0].copy_(found[source])
                    return
            for place in () if accumulate else places:
                place.zero_()
            for piece, (found, _) in zip(self._pieces.values(), self._all_gradients(), strict=True):
                if found[source] is None:
                    continue
                low, high = piece.windows[source]
                for place, (start, stop) in zip(places, rows, strict=True):
                    begin, end = max(start, low), min(stop, high)
                    if begin < end:
                        place[begin - start : end - start].add_(found[source][begin - low : end - low])

        return call

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Writes the gradients of the parameters, summed over the examples."""
        given = zip(out, self.arrays.parameters, strict=True)
        places = [as_tensor(place).reshape(parameter.shape) for place, parameter in given]

        def call() -> None:
            for place in () if accumulate else places:
                place.zero_()
            for piece, (_, gradients) in zip(self._pieces.values(), self._all_gradients(), strict=True):
                for place, found, own in zip(places, gradients, piece.slices, strict=True):
                    if found is not None:
                        place[own].add_(found)

        return call

    def _all_gradients(self) -> list[_Gradients]:
        """The gradients of all inputs and parameters, for each piece; computed by the first that asks."""
        with self._lock:
            if self._gradients is None:
                use_threads(self.context.threads)
                self._gradients = [piece.gradients() for piece in self._pieces.values()]
            return self._gradients


class _Piece:
    """Some of the machine's rows: the tensors that `forward` is given for them, and what it returned.

    Attributes:
        rows: of the layer.
        windows: of each input, the rows that feed these.
        slices: of each parameter, the part for these rows.
        output: receives the result.
    """

    def __init__(self, kernel: LayerFormKernel, rows: Span) -> None:
        self._kernel, self.rows, context = kernel, rows, kernel.context
        self._layer, arrays = context.grid.layer, kernel.arrays
        self.windows = tuple(self._window(source) for source in range(len(context.sources)))
        given = zip(arrays.inputs, self.windows, context.windows, strict=True)
        self._inputs = tuple(as_tensor(array[a - low : b - low]) for array, (a, b), (low, _) in given)
        own = slice(rows[0] - context.rows[0], rows[1] - context.rows[0])
        shared = [parameter.shared for parameter in context.grid.parameters]
        self.slices = tuple(slice(None) if one else own for one in shared)
        parameters = zip(arrays.parameters, self.slices, strict=True)
        self._parameters = tuple(as_tensor(array[part]) for array, part in parameters)
        self.output = as_tensor(arrays.output[own])
        self._grad = None if arrays.grad_output is None else as_tensor(arrays.grad_output[own])

    def _window(self, source: int) -> Span:
        """The rows of an input that feed these."""
        context, shape = self._kernel.context, self._kernel.context.sources[source].shape
        fed = context.grid.connectivity.source_rows(Box((self.rows,)), context.grid.shape, shape)
        return fed.hull[0] if fed else (context.windows[source][0],) * 2

    def play(self) -> None:
        """Computes these rows, and keeps what their gradients need."""
        learns = self._grad is not None and not self._layer.has_backward
        inputs = tuple(_leaf(tensor, learns) for tensor in self._inputs)
        parameters = tuple(_leaf(tensor, learns) for tensor in self._parameters)
        step = self._kernel.step(self)
        with torch.set_grad_enabled(learns):
            output = self._layer.forward(step, inputs, parameters)
        self._check(output)
        self.output.copy_(output.detach())
        self._played = step, inputs, parameters, output

    def _check(self, output: object) -> None:
        shape, expected = getattr(output, "shape", None), tuple(self.output.shape)
        if shape is None or tuple(shape) != expected:
            found = type(output).__name__ if shape is None else f"a tensor of shape {tuple(shape)}"
            raise ValueError(
                f"{self._kernel.context.label}: forward returned {found} for rows {self.rows}; return their "
                f"output, a tensor of shape {expected}: (rows, other node axes ..., example)"
            )

    def gradients(self) -> _Gradients:
        """The gradients of the inputs and of the parameters, by the gradient of the output."""
        step, inputs, parameters, output = self._played
        assert self._grad is not None, "this layer has no backward pass"
        grad = self._grad.to(output.dtype)
        if self._layer.has_backward:
            with torch.no_grad():
                return self._layer.backward(step, inputs, parameters, output, grad)
        wanted = [tensor for tensor in (*inputs, *parameters) if tensor.requires_grad]
        if not wanted or not output.requires_grad:
            return (None,) * len(inputs), (None,) * len(parameters)
        found = torch.autograd.grad(output, wanted, grad, allow_unused=True)
        of = dict(zip(map(id, wanted), found, strict=True))
        return tuple(of.get(id(one)) for one in inputs), tuple(of.get(id(one)) for one in parameters)


def _leaf(tensor: torch.Tensor, learns: bool) -> torch.Tensor:
    """A tensor without a history, in the precision of sums; integers as they are."""
    wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor.data
    return wide.requires_grad_(learns and wide.is_floating_point())
