"""Local contrast normalisation on a machine's rows: `normalisation_loops`, spread over threads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partita.engine.kernels.calls import sequence, split_spans
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext
from partita.engine.kernels.normalisation_loops import (
    Starts,
    add_channels,
    backward_input,
    normalise,
    sum_windows,
)
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.tiles.scratch import Scratch
from partita.engine.kernels.views import rows_of
from partita.layers import LocalContrastNormalisation2D
from partita.layers.box import BoxSet, Spans
from partita.layers.normalisation import Neighbourhood


class LocalContrastNormalisationKernel(Kernel):
    """`output = (input - mean) / max(floor, deviation)`, mean and deviation of the window around the place.

    The forward pass saves both for the backward pass.
    """

    layer = LocalContrastNormalisation2D

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        layer, wiring, (_, width, _) = context.grid.layer, context.grid.connectivity, context.grid.shape
        assert isinstance(layer, LocalContrastNormalisation2D) and isinstance(wiring, Neighbourhood)
        source = context.sources[0].shape
        self._left = len(layer.windows[1]) // 2 - wiring.axes(source)[1].before
        self._floor, (self._rows, self._columns) = layer.floor, map(np.array, layer.windows)
        self._saved = np.zeros((context.n_rows, 3, width, context.batch), context.master)
        self._row = (2, source[1], context.batch)
        self._size = math.prod(self._row)

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Sums over channels and columns for each row of the input, then over rows."""
        own, window, operations = self.context.rows, self.context.windows[0], self.context.operations
        x, weights, floor = self.arrays.inputs[0], self._rows, self._floor
        sums, scratch = np.zeros((len(x), *self._row)), self._scratch(np.dtype(np.float64))

        def add(start: int, stop: int) -> None:
            with scratch.take(self._size) as row:
                inputs, into = rows_of(x, (start, stop), window), rows_of(sums, (start, stop), window)
                add_channels(inputs, into, row.reshape(self._row), self._columns)

        def divide(start: int, stop: int) -> None:
            with scratch.take(self._size) as row:
                out, saved = (
                    rows_of(array, (start, stop), own) for array in (self.arrays.output, self._saved)
                )
                normalise(
                    x,
                    sums,
                    out,
                    saved,
                    row.reshape(self._row),
                    weights,
                    floor,
                    self._starts(start, window[0]),
                )

        return sequence(
            split_spans(self.pool, (window,), add, operations=operations),
            split_spans(self.pool, (own,), divide, operations=operations),
        )

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Sums the gradients of each window that holds these rows, then shares them out."""
        (first, last), half = self.context.rows, len(self._rows) // 2
        begin, end = BoxSet.of_rows(*rows).hull[0]
        receivers = max(begin - half, first), min(end + half, last)
        receivers = receivers if receivers[0] < receivers[1] else (first, first)
        sums = np.zeros((receivers[1] - receivers[0], *self._row), self.context.master)
        return sequence(
            self._sum_windows(sums, receivers), self._share_out(sums, receivers[0], rows, accumulate)
        )

    def _sum_windows(self, sums: Array, receivers: tuple[int, int]) -> Call:
        """Sums the gradients of the windows of these own rows."""
        own, window = self.context.rows, self.context.windows[0]
        x, grad = self.arrays.inputs[0], self.arrays.own_grad
        scratch, columns = self._scratch(self.context.master), self._columns.astype(self.context.master)

        def work(start: int, stop: int) -> None:
            span = start, stop
            inputs, into = rows_of(x, span, window), rows_of(sums, span, receivers)
            of_span, saved = rows_of(grad, span, own), rows_of(self._saved, span, own)
            with scratch.take(self._size) as row:
                sum_windows(inputs, of_span, saved, into, row.reshape(self._row), columns, self._left)

        return split_spans(self.pool, (receivers,), work, operations=self.context.operations)

    def _share_out(self, sums: Array, first_sum: int, rows: Spans, accumulate: bool) -> Call:
        """Adds each window's share to these rows of the input."""
        given = self.arrays.inputs[0], self.arrays.own_grad, self._saved, sums
        out, window = self.arrays.grad_input(0), self.context.grad_windows[0]
        weights = self._rows.astype(self.context.master)

        def work(start: int, stop: int) -> None:
            place = rows_of(out, (start, stop), window)
            backward_input(place, *given, weights, accumulate, self._starts(start, first_sum))

        return split_spans(self.pool, rows, work, operations=self.context.operations)

    def _starts(self, out: int, sums: int) -> Starts:
        """Rows at which arrays begin, for a call from row `out` on."""
        (window, _), height = self.context.windows[0], self.context.sources[0].n_rows
        return Starts(out, window, self.context.rows[0], sums, self._left, height)

    def _scratch(self, dtype: np.dtype[Any]) -> Scratch:
        """Scratch of a row for each thread."""
        scratch = Scratch(self.pool.threads, dtype)
        scratch.reserve(self._size)
        return scratch
