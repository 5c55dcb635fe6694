"""Batch normalisation on a machine's rows: `batch_norm_loops`, spread over threads by channels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from partita.engine.kernels import batch_norm_loops as loops
from partita.engine.kernels.calls import sequence, split_spans
from partita.engine.kernels.elementwise import OneToOneKernel
from partita.engine.kernels.kernel import Array, Arrays, Call, KernelContext, no_op
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.views import by_places, rows_of
from partita.layers import BatchNorm
from partita.layers.box import Spans

_NUMBERS = 3
"""Rows of the summary: see `partita.layers.moments`."""


class BatchNormKernel(OneToOneKernel):
    """`output = (input - mean) / deviation * weight + bias` for the machine's rows.

    With batch statistics, the gradient of a channel's inputs is `scale * grad + slope * (input - mean) +
    term`, where slope and term follow from the sums of the gradients, and of their products with the
    differences from the mean, over the rows of all machines.
    """

    layer = BatchNorm
    precisions = ("float32", "float64")
    gradient_by_rows = False
    follows_steps = True

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        layer = context.grid.layer
        assert isinstance(layer, BatchNorm)
        self._settings, self._current = layer, context.training and not layer.frozen_statistics
        self._x = by_places(rows_of(arrays.inputs[0], context.rows, context.windows[0]))
        self._output = by_places(arrays.output)
        n = self._x.shape[1]
        self._own, self._whole, self._sums = (
            np.zeros((_NUMBERS, n)),
            np.zeros((_NUMBERS, n)),
            np.zeros((2, n)),
        )
        self._inverse, self._scale, self._factors = np.zeros(n), np.zeros(n), np.zeros((3, n), context.dtype)
        self._of_grad = np.zeros((4, n), context.dtype)
        self._lock, self._summed, self._ready = threading.Lock(), False, False

    def summarise(self, piece: int) -> Call:
        """Writes the moments of the machine's rows; an evaluation needs none."""
        summaries = self.arrays.summaries
        if summaries is None:
            return no_op
        find = self._find_moments()

        def call() -> None:
            if self._current:
                find()
                summaries[piece] = self._own

        return call

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Normalises all rows, by the moments of those of all machines or by the running statistics."""
        find, summaries = self._find_moments(), self.arrays.summaries
        normalise = self._over_channels(
            lambda begin, end: loops.normalise(self._x, self._factors, self._output, begin, end)
        )

        def call() -> None:
            self._summed = self._ready = False
            if not self._current:
                self._take(*self.arrays.parameters[:2])
            else:
                if summaries is None:
                    find()
                self._whole[:] = self._own if summaries is None else _joined(summaries)
                count, mean, squares = self._whole
                self._take(mean, squares / np.maximum(count, 1))
            normalise()

        return call

    def _take(self, mean: Array, variance: Array) -> None:
        """Takes these statistics, and the parameters as they are."""
        weight, bias = self.arrays.parameters[2:] or (1.0, 0.0)
        self._inverse[:] = 1 / np.sqrt(variance.astype(np.float64) + self._settings.epsilon)
        self._scale[:] = self._inverse * weight
        self._factors[0], self._factors[1], self._factors[2] = mean, self._scale, bias

    def summarise_gradient(self, piece: int) -> Call:
        """Writes the gradients of the machine's rows for mean and squares of all; the count has none."""
        grads = self.arrays.grad_summaries
        assert grads is not None, f"{self.context.label} exchanges no gradient of a summary"
        add_up = self._add_up()

        def call() -> None:
            add_up()
            grads[piece] = self._of_statistics()

        return call

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Writes the gradient of the machine's rows, when those for the summary are there."""
        return sequence(self._prepared(), super().backward_input(source, rows, accumulate=accumulate))

    def write_gradient(self, source: int, own: slice, grad: Array, out: Array, accumulate: bool) -> None:
        """Writes the gradient of some rows; of a row of features, these are channels."""
        first, window = self.context.rows[0], self.context.windows[0]
        inputs = rows_of(self.arrays.inputs[0], (own.start + first, own.stop + first), window)
        x, grads, result = map(by_places, (inputs, grad, out))
        factors = self._of_grad[:, own].copy() if inputs.ndim == 2 else self._of_grad
        loops.write_gradient(x, grads, factors, self.n_real, result, accumulate)

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Writes the changes of the running statistics, and the gradients of weight and bias."""
        assert rows is None, "the statistics are those of all rows"
        add_up, places = self._add_up(), [one.reshape(-1) for one in out]

        def call() -> None:
            add_up()
            found = (*self._changes(), self._sums[1] * self._inverse, self._sums[0])
            for place, gradient, parameter in zip(places, found, self.context.grid.parameters, strict=False):
                if not accumulate:
                    place[...] = 0
                if parameter.trainable or parameter.averaged:
                    place += gradient.astype(place.dtype)

        return call

    def _changes(self) -> tuple[Array, Array]:
        """Returns the machine's share of what a step subtracts from mean and variance."""
        (count, mean, squares), examples = self._whole, self.n_real
        share = len(self._x) * examples / np.maximum(count, 1)
        share *= self._settings.momentum * examples / (self.micro_batch.mean_over or self.context.minibatch)
        unbiased = squares / np.maximum(count - 1, 1)
        running_mean, running_variance = self.arrays.parameters[:2]
        return (running_mean - mean) * share, (running_variance - unbiased) * share

    def _of_statistics(self) -> Array:
        """The gradients of the machine's rows for the moments of all, `[3, channel]`."""
        grad, product = self._sums
        of_variance = -self._scale * self._inverse**2 * product / 2
        return np.stack(
            (np.zeros_like(grad), -self._scale * grad, of_variance / np.maximum(self._whole[0], 1))
        )

    def _prepared(self) -> Call:
        """Finds the factors of the inputs' gradient, once in a backward pass."""
        add_up = self._add_up()

        def call() -> None:
            add_up()
            with self._lock:
                if self._ready:
                    return
                grads, found = self.arrays.grad_summaries, self._of_grad
                found[0], found[1] = self._factors[0], self._scale
                if self._current:
                    total = self._of_statistics() if grads is None else grads.astype(np.float64).sum(0)
                    found[2], found[3] = 2 * total[2], total[1] / np.maximum(self._whole[0], 1)
                self._ready = True

        return call

    def _find_moments(self) -> Call:
        return self._over_channels(
            lambda begin, end: loops.moments(self._x, self.n_real, self._own, begin, end)
        )

    def _add_up(self) -> Call:
        """Adds up the gradients of the machine's rows, once in a backward pass."""
        grad = by_places(self.arrays.own_grad)

        def work(begin: int, end: int) -> None:
            given = self._x, grad, self._factors[0], self.n_real
            loops.add_up_gradients(*given, self._sums, begin, end)

        add_up = self._over_channels(work)

        def call() -> None:
            with self._lock:
                if not self._summed:
                    add_up()
                    self._summed = True

        return call

    def _over_channels(self, work: Callable[[int, int], None]) -> Call:
        span, numbers = (0, self._x.shape[1]), float(self._x.size)
        return split_spans(self.pool, (span,), work, operations=numbers, kind="numbers")


def _joined(pieces: Array) -> Array:
    """The moments of all machines, `[3, channel]`, from those of each; see `partita.layers.moments`."""
    counts, means, squares = pieces.astype(np.float64).transpose(1, 0, 2)
    total = counts.sum(0)
    mean = (counts * means).sum(0) / np.maximum(total, 1)
    return np.stack((total, mean, (squares + counts * (means - mean) ** 2).sum(0)))
