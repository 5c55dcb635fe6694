"""The kernel of any layer that writes `forward`: its arithmetic in torch, on any device.

Autograd makes the backward pass unless the layer writes `backward`. All gradients of a micro-batch are
computed at once, when the first of them is asked for, and freed when all are written. `form_piece` has the
arithmetic of some rows; `loss_form` and `partial_form` derive from the kernel here. Importing this imports
torch.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from itertools import chain, pairwise, repeat
from typing import Any, Final, TypeVar

import torch

from partita.engine.kernels import orders
from partita.engine.kernels.convolution.differentiable import convolve
from partita.engine.kernels.counted import random_bits
from partita.engine.kernels.form_backward import with_gradient
from partita.engine.kernels.form_piece import FormPiece, Gradients
from partita.engine.kernels.kernel import (
    Array,
    Arrays,
    Call,
    Kernel,
    KernelContext,
    MicroBatch,
    no_op,
)
from partita.engine.kernels.products.differentiable import multiplication
from partita.engine.kernels.row_sums import add_gradient, prepare_sums
from partita.engine.kernels.tensors import as_tensor, use_threads
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.numerics import RowGradient
from partita.engine.numerics.philox import key_of
from partita.layers.box import Box, Shape, Span, Spans
from partita.layers.contract import Step

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")

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
        self._pieces: dict[tuple[Span, Span], FormPiece] = {}
        self._per_run = self._pieces_per_run()
        self._torch_threads = context.threads if self._per_run == 1 and not context.grid.layer.cuttable else 1
        self._multiply = multiplication(context.products, pool.at_most(self._torch_threads))
        self._lock = threading.Lock()
        if context.device == "cpu":
            orders.prepare(arrays.output.dtype, arrays.output.size)
        self.begin(self.micro_batch)

    def begin(self, micro_batch: MicroBatch) -> None:
        """Takes over the examples of the next forward pass; the backward pass after it is of the same."""
        super().begin(micro_batch)
        self.mean_over = micro_batch.mean_over or self.context.minibatch
        self._free()

    def step(
        self, rows: Span, windows: tuple[Span, ...], output: torch.Tensor, among: Span | None = None
    ) -> Step:
        """The circumstances of the next call, for some rows, and some examples of the arrays or all."""
        grid, context = self.context.grid, self.context
        begin, end = among or (0, context.batch)
        examples, first = self.micro_batch.examples, self.micro_batch.first_example + begin

        def random(noise: Shape | None = None) -> torch.Tensor:
            numbers, nodes = examples.numbers(first, end - begin), context.node_ranges(rows, noise)
            key, device = key_of(examples.seed, grid.name), output.device
            together = [extent == 1 for extent in noise or ()]
            shape = [1 if one else extent for one, extent in zip(together, output.shape, strict=False)]
            found = random_bits(key, examples.visit, numbers, nodes, device)
            return found.reshape([*shape, end - begin] if noise else output.shape)

        return Step(
            examples.step,
            self.micro_batch.number,
            context.training,
            first,
            rows=rows,
            shape=grid.shape,
            sources=tuple(source.shape for source in context.sources),
            windows=windows,
            wiring=grid.connectivity,
            torch=torch,
            random=random,
            examples=min(max(self.n_real - begin, 0), end - begin),
            mean_over=self.mean_over,
            position=examples.position + first,
            with_gradient=with_gradient,
            contiguous=orders.contiguous,
            convolve=convolve,
            multiply=self._multiply,
        )

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Computes the machine's rows, when all blocks of a sum are there."""
        return self.forward_rows((self.context.rows,)) if last else no_op

    def forward_rows(self, rows: Spans) -> Call:
        """Computes some of the machine's rows."""
        pieces = [self._piece(*part) for run in rows for part in self._parts(run)]

        def call() -> None:
            self._free()
            self._each(FormPiece.play, pieces)

        return call

    @property
    def _divides_examples(self) -> bool:
        """States whether pieces are of some examples, and not of some rows."""
        return self.context.grid.layer.divides_examples and not self.context.grid.parameters

    def _pieces_per_run(self) -> int:
        """The pieces into which a run of rows is divided: one for each thread that has enough to do."""
        context, grid = self.context, self.context.grid
        if context.device != "cpu" or not grid.layer.cuttable or grid.summary is not None:
            return 1
        shared = sum(math.prod(parameter.shape) for parameter in grid.parameters if parameter.shared)
        each = max(self.pool.shares.layer, _FOR_A_GRADIENT * shared)
        return max(min(context.threads, int(context.operations * grid.layer.slowdown / each)), 1)

    def _parts(self, run: Span) -> list[tuple[Span, Span]]:
        """Divides a run of rows, or its examples."""
        whole = 0, self.context.batch
        if self._divides_examples:
            return [(run, part) for part in _divided(whole, self._per_run)]
        return [(part, whole) for part in _divided(run, self._per_run)]

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

    def _piece(self, rows: Span, examples: Span | None = None) -> FormPiece:
        examples = examples or (0, self.context.batch)
        if (rows, examples) not in self._pieces:
            windows, grad = self.windows(rows), self.grad_output(rows)
            given = self.context, self.arrays, rows, windows
            self._pieces[rows, examples] = FormPiece(
                *given, examples=examples, grad=grad, step=self.step, keep=self.keep
            )
        return self._pieces[rows, examples]

    def summarise(self, piece: int) -> Call:
        """Computes the summary of the machine's rows."""
        return no_op if self.arrays.summaries is None else self._of_own_rows(FormPiece.summarise, piece)

    def summarise_gradient(self, piece: int) -> Call:
        """Computes the gradient of the machine's rows for the summary of all."""
        return self._of_own_rows(FormPiece.summarise_gradient, piece)

    def _of_own_rows(self, act: Callable[[FormPiece, int], None], piece: int) -> Call:
        rows = self._piece(self.context.rows)

        def call() -> None:
            use_threads(self._torch_threads)
            act(rows, piece)

        return call

    def grad_output(self, rows: Span) -> torch.Tensor | None:
        """Gradient of the output of some rows; None without a backward pass."""
        grad, first = self.arrays.grad_output, self.context.rows[0]
        return None if grad is None else as_tensor(grad[rows[0] - first : rows[1] - first])

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
            found = zip(self._all_spans(source), self._all_gradients(), strict=True)
            pairs = ((spans, grads[source]) for spans, (grads, _) in found)
            given = [(span, among, one) for (span, among), one in pairs if one is not None]
            alike = {among for _, among, _ in given}
            apart = bool(given) and all(
                _cover(rows, [span for span, own, _ in given if own == among]) for among in alike
            )

            def add(piece: tuple[Span, Span, torch.Tensor]) -> None:
                (low, high), among, found = piece
                for place, (start, stop) in zip(places, rows, strict=True):
                    begin, end = max(start, low), min(stop, high)
                    if begin < end:
                        part = place[begin - start : end - start, ..., slice(*among)]
                        own = found[begin - low : end - low]
                        if apart and not accumulate:
                            orders.copy(part, own)
                        else:
                            part.add_(own)

            if apart:
                self._each(add, given)
            else:
                for place in () if accumulate else places:
                    place.zero_()
                for piece in given:
                    add(piece)
            self._wrote()

        return call

    def backward_parameters(
        self,
        out: Sequence[Array | RowGradient],
        rows: tuple[int, int] | None = None,
        *,
        accumulate: bool = False,
    ) -> Call:
        """Writes the gradients of the parameters, summed over the examples."""
        grid = self.context.grid
        if grid.layer.integer_inputs or any(parameter.sparse for parameter in grid.parameters):
            prepare_sums(self.context.master)
        places = [
            place if isinstance(place, RowGradient) else as_tensor(place).reshape(parameter.shape)
            for place, parameter in zip(out, self.arrays.parameters, strict=True)
        ]
        added = [
            parameter.shared or isinstance(place, RowGradient)
            for place, parameter in zip(places, grid.parameters, strict=True)
        ]  # by every piece, into one place

        def call() -> None:
            for n, (slices, (_, gradients)) in enumerate(
                zip(self._slices(), self._all_gradients(), strict=True)
            ):
                given = zip(places, slices, chain(gradients, repeat(None)), added, strict=False)
                for place, own, found, is_added in given:
                    add_gradient(place, own, found, first=not accumulate and not (n and is_added))
            self._wrote()

        return call

    def _all_spans(self, source: int) -> list[tuple[Span, Span]]:
        """The rows of an input that each piece reads, and the examples."""
        return [(piece.windows[source], piece.examples) for piece in self._pieces.values()]

    def _slices(self) -> list[tuple[slice, ...]]:
        """The parts of the parameters that belong to each piece."""
        return [piece.slices for piece in self._pieces.values()]

    def _free(self) -> None:
        """Frees the gradients of the last pass, before a forward pass."""
        self._gradients: Sequence[Gradients] | None = None
        self._left = self.backward_calls or 0

    def _all_gradients(self) -> Sequence[Gradients]:
        """The gradients of all inputs and parameters, for each piece; computed by the first that asks."""
        with self._lock:
            if self._gradients is None:
                self._gradients = self._derived()
            return self._gradients

    def _wrote(self) -> None:
        """Frees the gradients after the last call of the backward pass."""
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self._gradients = None

    def _derived(self) -> Sequence[Gradients]:
        """The gradients of all inputs and parameters, for each piece."""
        return self._each(FormPiece.gradients, list(self._pieces.values()))


def _divided(span: Span, pieces: int) -> list[Span]:
    """Divides a span into so many nearly equal ones, or fewer where it is shorter; an empty one stays."""
    start, length = span[0], span[1] - span[0]
    n = min(pieces, length)
    cuts = [start + length * k // n for k in range(n)] if n else []
    return list(pairwise((*cuts, span[1])))


def _cover(rows: Spans, spans: Sequence[Span]) -> bool:
    """Returns whether spans cover all of these rows, and none twice."""
    ends = sorted(span for span in spans if span[0] < span[1])
    apart = all(one[1] == other[0] for one, other in pairwise(ends))
    return apart and bool(ends) and all(ends[0][0] <= a and b <= ends[-1][1] for a, b in rows)
