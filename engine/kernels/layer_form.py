"""The kernel of any layer that writes `forward`: its arithmetic in torch, on any device.

Autograd makes the backward pass unless the layer writes `backward`. All gradients of a micro-batch are
computed at once, when the first of them is asked for. `loss_form` and `partial_form` derive from it.
Importing this imports torch.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, TypeAlias, TypeVar

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
from partita.engine.kernels.products.differentiable import multiplication
from partita.engine.kernels.row_sums import add_gradient
from partita.engine.kernels.tensors import as_tensor, leaf, use_threads
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.numerics import RowGradient
from partita.engine.numerics.philox import key_of
from partita.layers.box import Box, Span, Spans
from partita.layers.contract import Step
from partita.layers.layer import Parameter

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")
Gradients: TypeAlias = tuple[Sequence[Any], Sequence[Any]]
"""Gradients of the inputs, and of the parameters; None where there is none."""


_FOR_A_GRADIENT: Final = 10.0
"""Operations for each shared number of which a thread makes a gradient of its own, and adds it."""


class LayerFormKernel(Kernel):
    """A layer's `forward` and `backward` over the machine's rows.

    Numbers in bfloat16 are computed in float32 and rounded once. Of a layer that may be cut, each thread of
    the pool computes rows of its own, as a machine would: PyTorch's own threads go on spinning after a call,
    and would keep those of the pool from a core.
    """

    gradient_by_rows = False
    follows_steps = True
    writes_rows = True

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        self._pieces: dict[Span, FormPiece] = {}
        self._per_run = self._pieces_per_run()
        self._torch_threads = context.threads if self._per_run == 1 and not context.grid.layer.cuttable else 1
        self._multiply = multiplication(context.products, pool.at_most(self._torch_threads))
        self._lock = threading.Lock()
        self._gradients: list[Gradients] | None = None
        self.begin(OneStep(), micro_batch=0, first_example=0)

    def begin(
        self,
        examples: Numbered,
        *,
        micro_batch: int,
        first_example: int,
        real: int | None = None,
        mean_over: int | None = None,
    ) -> None:
        """Takes over the examples of the next forward pass; the backward pass after it is of the same."""
        self._examples, self._micro_batch, self._first_example = examples, micro_batch, first_example
        self._real = self.context.batch if real is None else real
        self.mean_over = mean_over or self.context.minibatch
        self._gradients = None

    def step(self, rows: Span, windows: tuple[Span, ...], output: torch.Tensor) -> Step:
        """The circumstances of the next call, for some rows."""
        grid, context = self.context.grid, self.context
        examples, first = self._examples, self._first_example

        def random() -> torch.Tensor:
            numbers, nodes = examples.numbers(first, context.batch), context.node_ranges(rows)
            key, device = key_of(examples.seed, grid.name), output.device
            return random_bits(key, examples.visit, numbers, nodes, device).reshape(output.shape)

        return Step(
            examples.step,
            self._micro_batch,
            context.training,
            first,
            rows=rows,
            shape=grid.shape,
            sources=tuple(source.shape for source in context.sources),
            windows=windows,
            wiring=grid.connectivity,
            torch=torch,
            random=random,
            examples=self._real,
            mean_over=self.mean_over,
            with_gradient=_WithGradient.apply,
            multiply=self._multiply,
        )

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Computes the machine's rows, when all blocks of a sum are there."""
        return self.forward_rows((self.context.rows,)) if last else no_op

    def forward_rows(self, rows: Spans) -> Call:
        """Computes some of the machine's rows."""
        pieces = [self._piece(part) for run in rows for part in self._parts(run)]

        def call() -> None:
            self._gradients = None
            self._each(FormPiece.play, pieces)

        return call

    def _pieces_per_run(self) -> int:
        """The pieces into which a run of rows is divided: one for each thread that has enough to do."""
        context, grid = self.context, self.context.grid
        if context.device != "cpu" or not grid.layer.cuttable or grid.summary is not None:
            return 1
        shared = sum(math.prod(parameter.shape) for parameter in grid.parameters if parameter.shared)
        each = max(self.pool.shares.layer, _FOR_A_GRADIENT * shared)
        return max(min(context.threads, int(context.operations * grid.layer.slowdown / each)), 1)

    def _parts(self, run: Span) -> list[Span]:
        """Divides a run of rows."""
        n = min(self._per_run, run[1] - run[0])
        cuts = [run[0] + (run[1] - run[0]) * k // n for k in range(n)] if n else []
        return list(pairwise((*cuts, run[1])))

    def _each(self, act: Callable[[_Item], _Found], items: Sequence[_Item]) -> list[_Found]:
        """Calls a function of each piece, on the threads of the pool if there are several for a run."""
        found: list[Any] = [None] * len(items)

        def work(start: int, stop: int) -> None:
            use_threads(self._torch_threads)
            for k in range(start, stop):
                found[k] = act(items[k])

        if self._per_run == 1:
            work(0, len(items))
        else:
            self.pool.split(0, len(items), work)
        return found

    def _piece(self, rows: Span) -> FormPiece:
        if rows not in self._pieces:
            self._pieces[rows] = FormPiece(self, rows)
        return self._pieces[rows]

    def summarise(self, piece: int) -> Call:
        """Computes the summary of the machine's rows."""
        if self.arrays.summaries is None:
            return no_op
        rows = self._piece(self.context.rows)

        def call() -> None:
            use_threads(self._torch_threads)
            rows.summarise(piece)

        return call

    def summarise_gradient(self, piece: int) -> Call:
        """Computes the gradient of the machine's rows for the summary of all."""
        rows = self._piece(self.context.rows)

        def call() -> None:
            use_threads(self._torch_threads)
            rows.summarise_gradient(piece)

        return call

    def grad_output(self, piece: FormPiece) -> torch.Tensor | None:
        """Gradient of the output of some rows; None without a backward pass."""
        grad, first = self.arrays.grad_output, self.context.rows[0]
        return None if grad is None else as_tensor(grad[piece.rows[0] - first : piece.rows[1] - first])

    def windows(self, rows: Span) -> tuple[Span, ...]:
        """The rows of each input that feed these."""
        return tuple(self._window(rows, source) for source in range(len(self.context.sources)))

    def _window(self, rows: Span, source: int) -> Span:
        context, shape = self.context, self.context.sources[source].shape
        fed = context.grid.wirings[source].source_rows(Box((rows,)), context.grid.shape, shape)
        return fed.hull[0] if fed else (context.windows[source][0],) * 2

    def keep(self, output: torch.Tensor, step: Step, inputs: tuple[torch.Tensor, ...]) -> None:
        """Keeps more of an output, computed from these, than is rounded to the precision."""

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Writes the gradient of these rows of an input; zero where they feed no row of the machine."""
        out, window = as_tensor(self.arrays.grad_input(source)), self.context.grad_windows[source]
        places = [out[start - window[0] : stop - window[0]] for start, stop in rows]

        def call() -> None:
            spans = [windows[source] for windows in self._all_windows()]
            gradients = [found[source] for found, _ in self._all_gradients()]
            given = [pair for pair in zip(spans, gradients, strict=True) if pair[1] is not None]
            apart = _cover(rows, [span for span, _ in given])

            def add(pair: tuple[Span, torch.Tensor]) -> None:
                (low, high), found = pair
                for place, (start, stop) in zip(places, rows, strict=True):
                    begin, end = max(start, low), min(stop, high)
                    if begin < end:
                        part = place[begin - start : end - start]
                        (part.copy_ if apart and not accumulate else part.add_)(
                            found[begin - low : end - low]
                        )

            if apart:
                self._each(add, given)
                return
            for place in () if accumulate else places:
                place.zero_()
            for pair in given:
                add(pair)

        return call

    def backward_parameters(
        self,
        out: Sequence[Array | RowGradient],
        rows: tuple[int, int] | None = None,
        *,
        accumulate: bool = False,
    ) -> Call:
        """Writes the gradients of the parameters, summed over the examples."""
        given = zip(out, self.arrays.parameters, strict=True)
        places = [
            place if isinstance(place, RowGradient) else as_tensor(place).reshape(parameter.shape)
            for place, parameter in given
        ]

        def call() -> None:
            for place in () if accumulate else places:
                place.clear() if isinstance(place, RowGradient) else place.zero_()
            for slices, (_, gradients) in zip(self._slices(), self._all_gradients(), strict=True):
                for place, found, own in zip(places, gradients, slices, strict=False):
                    if found is not None:
                        add_gradient(place if isinstance(place, RowGradient) else place[own], found)

        return call

    def _all_windows(self) -> list[tuple[Span, ...]]:
        """The rows of the inputs that each piece reads."""
        return [piece.windows for piece in self._pieces.values()]

    def _slices(self) -> list[tuple[slice, ...]]:
        """The parts of the parameters that belong to each piece."""
        return [piece.slices for piece in self._pieces.values()]

    def _all_gradients(self) -> list[Gradients]:
        """The gradients of all inputs and parameters, for each piece; computed by the first that asks."""
        with self._lock:
            if self._gradients is None:
                self._gradients = self._derived()
            return self._gradients

    def _derived(self) -> list[Gradients]:
        return self._each(FormPiece.gradients, list(self._pieces.values()))


def _cover(rows: Spans, spans: Sequence[Span]) -> bool:
    """Returns whether spans cover all of these rows, and none twice."""
    ends = sorted(span for span in spans if span[0] < span[1])
    apart = all(one[1] == other[0] for one, other in pairwise(ends))
    return apart and bool(ends) and all(ends[0][0] <= a and b <= ends[-1][1] for a, b in rows)


class FormPiece:
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
        self.windows = kernel.windows(rows)
        given = zip(arrays.inputs, self.windows, context.windows, strict=True)
        self._inputs = tuple(as_tensor(array[a - low : b - low]) for array, (a, b), (low, _) in given)
        own = slice(rows[0] - context.rows[0], rows[1] - context.rows[0])
        self.slices = tuple(_part(one, rows, context.rows) for one in context.grid.parameters)
        parameters = zip(arrays.parameters, self.slices, strict=True)
        self._parameters = tuple(as_tensor(array[part]) for array, part in parameters)
        self.output = as_tensor(arrays.output[own])
        self._grad = kernel.grad_output(self)
        self._learns = self._grad is not None and not self._layer.has_backward
        self._exchange: _Exchange | None = None
        self._own_summary: int | None = None

    def _begin(self) -> None:
        """Takes the numbers of the next step."""
        wide = self._layer.rounds_products
        self._step = self._kernel.step(self.rows, self.windows, self.output)
        grads = self._kernel.arrays.grad_inputs or (None,) * len(self._inputs)
        pairs = zip(self._inputs, grads, strict=True)
        self._given = tuple(leaf(one, self._learns and grad is not None, wide) for one, grad in pairs)
        given = zip(self._parameters, self._kernel.context.grid.parameters, strict=True)
        self._used = tuple(
            leaf(tensor, self._learns and (one.trainable or one.averaged), wide) for tensor, one in given
        )

    def summarise(self, piece: int) -> None:
        """Writes the machine's summary, number `piece` of all machines."""
        summaries = self._kernel.arrays.summaries
        assert summaries is not None, f"{self._kernel.context.label} exchanges no summary"
        self._begin()
        with torch.set_grad_enabled(self._learns):
            own = self._layer.summarise(self._step, self._given, self._used)
        place = as_tensor(summaries)[piece]
        self._check("summarise", own, tuple(place.shape))
        place.copy_(own.detach())
        self._exchange = _Exchange(piece, own)

    def play(self) -> None:
        """Computes these rows, and keeps what their gradients need."""
        exchange = self._exchange
        if exchange is None:
            self._begin()
        with torch.set_grad_enabled(self._learns):
            if self._kernel.context.grid.summary is not None:
                self._step = replace(self._step, summary=self._summary())
            output = self._layer.forward(self._step, self._given, self._used)
        self._check("forward", output, tuple(self.output.shape))
        self.output.copy_(output.detach())
        self._kernel.keep(output, self._step, self._given)
        self._played = output, exchange
        self._exchange = None

    def _summary(self) -> torch.Tensor:
        """The summary of all rows: of those here, or of those of all machines, which is then a leaf."""
        step, exchange = self._step, self._exchange
        if exchange is None:
            own = self._layer.summarise(step, self._given, self._used)
            combined: torch.Tensor = self._layer.combine(step, own[None])
            return combined
        summaries = self._kernel.arrays.summaries
        assert summaries is not None, "summaries were exchanged"
        exchange.all = as_tensor(summaries).clone().requires_grad_(self._learns)
        exchange.combined = self._layer.combine(step, exchange.all)
        exchange.leaf = exchange.combined.detach().requires_grad_(self._learns)
        return exchange.leaf

    def _check(self, method: str, found: object, expected: tuple[int, ...]) -> None:
        shape = getattr(found, "shape", None)
        if shape is None or tuple(shape) != expected:
            given = type(found).__name__ if shape is None else f"a tensor of shape {tuple(shape)}"
            what = "(rows, other node axes ..., example)" if method == "forward" else "that of `summary`"
            result = "output" if method == "forward" else "summary"
            raise ValueError(
                f"{self._kernel.context.label}: {method} returned {given} for rows {self.rows}; return their "
                f"{result}, a tensor of shape {expected}: {what}"
            )

    def summarise_gradient(self, piece: int) -> None:
        """Writes the gradient that these rows return for the summary of all."""
        (output, exchange), grads = self._played, self._kernel.arrays.grad_summaries
        assert exchange is not None and grads is not None, "no summary was exchanged"
        found = self._derived(output, (exchange.leaf,), retain_graph=True)[0]
        place = as_tensor(grads)[piece]
        if found is None:
            place.zero_()
        else:
            place.copy_(found)

    def gradients(self) -> Gradients:
        """The gradients of the inputs and of the parameters, by the gradient of the output; once.

        What the forward pass kept for them is freed with it.
        """
        output, exchange = self._played
        inputs, parameters = self._given, self._used
        del self._played, self._given, self._used
        if self._layer.has_backward:
            assert self._grad is not None, "this layer has no backward pass"
            with torch.no_grad():
                return self._layer.backward(self._step, inputs, parameters, output, self._grad_of(output))
        wanted = [tensor for tensor in (*inputs, *parameters) if tensor.requires_grad]
        found = self._derived(output, wanted, exchange)
        of = dict(zip(map(id, wanted), found, strict=True))
        return tuple(of.get(id(one)) for one in inputs), tuple(of.get(id(one)) for one in parameters)

    def _grad_of(self, output: torch.Tensor) -> torch.Tensor:
        assert self._grad is not None, "this layer has no backward pass"
        return self._grad.to(output.dtype)

    def _derived(
        self,
        output: torch.Tensor,
        wanted: Sequence[torch.Tensor],
        exchange: _Exchange | None = None,
        *,
        retain_graph: bool = False,
    ) -> Sequence[torch.Tensor | None]:
        """The gradients of these tensors, by that of the output; with an exchange, and by the summary's."""
        ends = [(output, self._grad_of(output))]
        if exchange is not None:
            grads = self._kernel.arrays.grad_summaries
            assert grads is not None, "no gradient of the summary was exchanged"
            ends.append((exchange.own, exchange.gradient(as_tensor(grads))))
        ends = [(end, grad) for end, grad in ends if end.requires_grad]
        if not wanted or not ends:
            return (None,) * len(wanted)
        outputs, given = zip(*ends, strict=True)
        return torch.autograd.grad(outputs, wanted, given, allow_unused=True, retain_graph=retain_graph)


def _part(parameter: Parameter, rows: Span, held: Span) -> slice:
    """The part of a machine's piece of a parameter that belongs to some of its rows."""
    if parameter.shared:
        return slice(None)
    if parameter.row_starts is None:
        return slice(rows[0] - held[0], rows[1] - held[0])
    (start, stop), (first, _) = parameter.span(rows), parameter.span(held)
    return slice(start - first, stop - first)


class _WithGradient(torch.autograd.Function):
    """An output as it is; in the backward pass a parameter has a given gradient."""

    @staticmethod
    def forward(
        ctx: Any, output: torch.Tensor, parameter: torch.Tensor, gradient: torch.Tensor
    ) -> torch.Tensor:
        """Keeps the gradient, and returns the output as it is."""
        ctx.save_for_backward(gradient.to(parameter.dtype))
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Returns the output's gradient, and that which was kept."""
        return grad, ctx.saved_tensors[0], None


class _Exchange:
    """The machine's summary among those of all machines.

    Attributes:
        own: the machine's, with its history.
        all: those of all machines, a leaf.
        combined: the summary of all rows, with its history from `all`.
        leaf: the same as the layer's forward pass is given it.
    """

    all: torch.Tensor
    combined: torch.Tensor
    leaf: torch.Tensor

    def __init__(self, piece: int, own: torch.Tensor) -> None:
        self._piece, self.own = piece, own

    def gradient(self, grads: torch.Tensor) -> torch.Tensor:
        """The gradient of the machine's summary, from those of all rows for the combined one, in order."""
        total = sum(grads[1:], start=grads[0]).to(self.combined.dtype)
        (found,) = torch.autograd.grad(self.combined, self.all, total)
        return found[self._piece].to(self.own.dtype)
