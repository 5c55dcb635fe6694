"""Local contrast normalisation on a machine's rows, spread over threads; its loops are beside it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partita.engine.kernels.calls import sequence
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext
from partita.engine.kernels.normalisation_loops import add_channels, find_errors, find_returned, normalise
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.tiles.scratch import Scratch
from partita.engine.kernels.views import rows_of
from partita.layers import LocalContrastNormalisation2D
from partita.layers.box import BoxSet, Spans
from partita.layers.normalisation import Neighbourhood


class LocalContrastNormalisationKernel(Kernel):
    """`state = (input - mean) / max(floor, deviation)`, mean and deviation of the window around the place.

    The way up keeps both for the way down.
    """

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        layer, wiring, (_, width, _) = context.grid.layer, context.grid.connectivity, context.grid.shape
        assert isinstance(layer, LocalContrastNormalisation2D) and isinstance(wiring, Neighbourhood)
        source = context.sources[0].shape
        self._left = len(layer.windows[1]) // 2 - wiring.axes(source)[1].before
        self._floor, (self._rows, self._columns) = layer.floor, map(np.array, layer.windows)
        self._kept = np.zeros((context.n_rows, 3, width, context.batch), context.master)
        self._row = (2, source[1], context.batch)
        self._size = math.prod(self._row)

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Sums over channels and columns for each row of the input, then over rows."""
        own, window, operations = self.context.rows, self.context.windows[0], self.context.operations
        x, height, floor = self.arrays.inputs[0], self.context.sources[0].n_rows, self._floor
        sums, scratch = np.zeros((len(x), *self._row)), self._scratch(np.dtype(np.float64))

        def add(start: int, stop: int) -> None:
            run = start, stop
            with scratch.lent(self._size) as room:
                row = room.reshape(self._row)
                add_channels(rows_of(x, run, window), rows_of(sums, run, window), row, self._columns)

        def find(start: int, stop: int) -> None:
            state, kept = (rows_of(array, (start, stop), own) for array in (self.arrays.output, self._kept))
            with scratch.lent(self._size) as room:
                row = room.reshape(self._row)
                normalise(x, sums, window[0], height, state, kept, row, self._rows, floor, start, self._left)

        def call() -> None:
            self.pool.split(*window, add, operations=operations)
            self.pool.split(*own, find, operations=operations)

        add(window[0], window[0])
        find(own[0], own[0])
        return call

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """What each window that holds these rows returns, then its share for each state."""
        (first, last), half, (begin, end) = (
            self.context.rows,
            len(self._rows) // 2,
            BoxSet.of_rows(*rows).hull[0],
        )
        heard = max(begin - half, first), min(end + half, last)
        heard = heard if heard[0] < heard[1] else (first, first)
        returned = np.zeros((heard[1] - heard[0], *self._row), self.context.master)
        return sequence(self._returning(returned, heard), self._spreading(returned, heard, rows, accumulate))

    def _returning(self, returned: Array, heard: tuple[int, int]) -> Call:
        """What the windows of these own rows return."""
        own, window, operations = self.context.rows, self.context.windows[0], self.context.operations
        x, delta = self.arrays.inputs[0], self.arrays.own_grad
        scratch, columns = self._scratch(self.context.master), self._columns.astype(self.context.master)

        def work(start: int, stop: int) -> None:
            run = start, stop
            inputs, into = rows_of(x, run, window), rows_of(returned, run, heard)
            given, kept = (rows_of(array, run, own) for array in (delta, self._kept))
            with scratch.lent(self._size) as room:
                find_returned(inputs, given, kept, into, room.reshape(self._row), columns, self._left)

        work(heard[0], heard[0])
        return lambda: self.pool.split(*heard, work, operations=operations)

    def _spreading(self, returned: Array, heard: tuple[int, int], rows: Spans, accumulate: bool) -> Call:
        """Shares it out to these rows of the input."""
        (first, _), (window, _), operations = (
            self.context.rows,
            self.context.windows[0],
            self.context.operations,
        )
        x, delta, kept = self.arrays.inputs[0], self.arrays.own_grad, self._kept
        out, errors_window = self.arrays.grad_input(0), self.context.grad_windows[0]
        scratch, weights = self._scratch(self.context.master), self._rows.astype(self.context.master)

        def work(start: int, stop: int) -> None:
            place = rows_of(out, (start, stop), errors_window)
            given = x, window, delta, kept, first, returned, heard[0], weights, accumulate
            with scratch.lent(self._size) as room:
                find_errors(place, start, *given, room.reshape(self._row), self._left)

        def call() -> None:
            for run in rows:
                self.pool.split(*run, work, operations=operations)

        work(errors_window[0], errors_window[0])
        return call

    def _scratch(self, dtype: np.dtype[Any]) -> Scratch:
        """A row for each thread."""
        scratch = Scratch(self.pool.threads, dtype)
        scratch.reserve(self._size)
        return scratch
