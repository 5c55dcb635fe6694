"""Some of a machine's rows, or of their examples, by the layer's `forward`: what it is given for them, and
the gradients that it returns. Importing this imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch

from partita.engine.kernels import orders
from partita.engine.kernels.form_backward import Gradient, derived, root
from partita.engine.kernels.form_exchange import Exchange
from partita.engine.kernels.kernel import Arrays, KernelContext
from partita.engine.kernels.tensors import as_tensor, leaf
from partita.layers.box import Span
from partita.layers.contract import Step
from partita.layers.layer import Parameter

Gradients: TypeAlias = tuple[Sequence[Gradient], Sequence[Gradient]]
"""Gradients of the inputs, and of the parameters; None where there is none."""
Keep: TypeAlias = Callable[[torch.Tensor, Step, tuple[torch.Tensor, ...]], None]
"""Called with each output, its step and its inputs."""


class FormPiece:
    """Some of the machine's rows, for all examples or some of them.

    Attributes:
        rows: of the layer.
        examples: `[start, stop)` of the arrays.
        windows: of each input, the rows that feed these.
        slices: of each parameter, the part for these rows.
        output: receives the result.
    """

    def __init__(
        self,
        context: KernelContext,
        arrays: Arrays,
        rows: Span,
        windows: tuple[Span, ...],
        *,
        examples: Span,
        grad: torch.Tensor | None,
        step: Callable[[Span, tuple[Span, ...], torch.Tensor, Span], Step],
        keep: Keep,
    ) -> None:
        """Finds the tensors of these rows.

        Args:
            context: the machine's part of the layer.
            arrays: of the machine.
            rows: of the layer.
            windows: of each input, the rows that feed these.
            examples: `[start, stop)` of the arrays.
            grad: the gradient of the output for all examples; None without a backward pass.
            step: makes the step of some rows, their windows, their output and the examples.
            keep: is called with each output.
        """
        self._context, self._arrays, self.rows, self.windows = context, arrays, rows, windows
        self.examples, own = examples, slice(*examples)
        self._layer, self._new_step, self._keep = context.grid.layer, step, keep
        self._grad = None if grad is None else grad[..., own]
        given = zip(arrays.inputs, windows, context.windows, strict=True)
        self._inputs = tuple(
            as_tensor(array[a - low : b - low])[..., own] for array, (a, b), (low, _) in given
        )
        self.slices = tuple(_part(one, rows, context.rows) for one in context.grid.parameters)
        parameters = zip(arrays.parameters, self.slices, strict=True)
        self._parameters = tuple(as_tensor(array[part]) for array, part in parameters)
        output = arrays.output[rows[0] - context.rows[0] : rows[1] - context.rows[0]]
        self.output = as_tensor(output)[..., own]
        self._learns = grad is not None and not self._layer.has_backward
        self._exchange: Exchange | None = None

    def _begin(self) -> None:
        """Takes the numbers of the next step."""
        wide = self._layer.rounds_products
        self._step = self._new_step(self.rows, self.windows, self.output, self.examples)
        grads = self._arrays.grad_inputs or (None,) * len(self._inputs)
        pairs = zip(self._inputs, grads, strict=True)
        self._given = tuple(leaf(one, self._learns and grad is not None, wide) for one, grad in pairs)
        given = zip(self._parameters, self._context.grid.parameters, strict=True)
        self._used = tuple(
            leaf(tensor, self._learns and (one.trainable or one.averaged), wide) for tensor, one in given
        )

    def summarise(self, piece: int) -> None:
        """Writes the machine's summary, number `piece` of all machines."""
        assert self._arrays.summaries is not None, f"{self._context.label} exchanges no summary"
        self._begin()
        with torch.set_grad_enabled(self._learns):
            own = self._layer.summarise(self._step, self._given, self._used)
        self._check("summarise", own, self._arrays.summaries[piece].shape)
        self._exchange = Exchange(self._arrays, piece, own)

    def play(self) -> None:
        """Computes these rows, and keeps what their gradients need."""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            self._begin()
        with torch.set_grad_enabled(self._learns):
            if self._context.grid.summary is not None:
                self._step = replace(self._step, summary=self._summary(exchange))
            output = self._layer.forward(self._step, self._given, self._used)
            self._check("forward", output, self.output.shape)
            if self._learns and self._grad is not None:
                self._played = root(output, self._grad), exchange
            elif self._grad is not None:
                self._played = output, exchange
        orders.copy(self.output, output.detach())
        self._keep(output, self._step, self._given)

    def _summary(self, exchange: Exchange | None) -> torch.Tensor:
        """The summary of all rows: of those here, or of those of all machines."""
        if exchange is not None:
            return exchange.combine(self._layer, self._step, learns=self._learns)
        own = self._layer.summarise(self._step, self._given, self._used)
        combined: torch.Tensor = self._layer.combine(self._step, own[None])
        return combined

    def _check(self, method: str, found: object, expected: Sequence[int]) -> None:
        shape = getattr(found, "shape", None)
        if shape is None or tuple(shape) != tuple(expected):
            given = type(found).__name__ if shape is None else f"a tensor of shape {tuple(shape)}"
            what = "(rows, other node axes ..., example)" if method == "forward" else "that of `summary`"
            result = "output" if method == "forward" else "summary"
            raise ValueError(
                f"{self._context.label}: {method} returned {given} for rows {self.rows}; return their "
                f"{result}, a tensor of shape {tuple(expected)}: {what}"
            )

    def summarise_gradient(self, piece: int) -> None:
        """Writes the gradient that these rows return for the summary of all."""
        begin, exchange = self._played
        assert exchange is not None, "no summary was exchanged"
        exchange.write_gradient(piece, derived([begin], [exchange.leaf], retain_graph=True)[0])

    def gradients(self) -> Gradients:
        """The gradients of the inputs and of the parameters, by the gradient of the output; once.

        What the forward pass kept for them is freed with it.
        """
        assert self._grad is not None, "this layer has no backward pass"
        begin, exchange = self._played
        inputs, parameters = self._given, self._used
        del self._played, self._given, self._used
        if self._layer.has_backward:
            with torch.no_grad():
                grad = self._grad.to(begin.dtype)
                return self._layer.backward(self._step, inputs, parameters, begin, grad)
        wanted = [tensor for tensor in (*inputs, *parameters) if tensor.requires_grad]
        roots = [begin] if exchange is None else [begin, exchange.root()]
        of = dict(zip(map(id, wanted), derived(roots, wanted), strict=True))
        return tuple(of.get(id(one)) for one in inputs), tuple(of.get(id(one)) for one in parameters)


def _part(parameter: Parameter, rows: Span, held: Span) -> slice:
    """The part of a machine's piece of a parameter that belongs to some of its rows."""
    if parameter.shared:
        return slice(None)
    if parameter.row_starts is None:
        return slice(rows[0] - held[0], rows[1] - held[0])
    (start, stop), (first, _) = parameter.span(rows), parameter.span(held)
    return slice(start - first, stop - first)
