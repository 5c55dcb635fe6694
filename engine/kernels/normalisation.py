"""Local contrast normalisation on a machine's rows, spread over threads; its loops are beside it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partita.engine.kernels.calls import in_turn
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, Site
from partita.engine.kernels.normalisation_loops import add_channels, find_errors, find_returned, normalise
from partita.engine.kernels.parallel import Team
from partita.engine.kernels.tiles.scratch import Scratch
from partita.engine.kernels.views import rows_of
from partita.layers import LocalContrastNormalisation2D
from partita.layers.box import BoxSet, Spans
from partita.layers.normalisation import Neighbourhood


class LocalContrastNormalisationKernel(Kernel):
    """`state = (input - mean) / max(floor, deviation)`, mean and deviation of the window around the place.

    The way up keeps both for the way down.
    """

    def __init__(self, site: Site, arrays: Arrays, team: Team) -> None:
        super().__init__(site, arrays, team)
        layer, wiring, (_, width, _) = site.grid.layer, site.grid.connectivity, site.grid.shape
        assert isinstance(layer, LocalContrastNormalisation2D) and isinstance(wiring, Neighbourhood)
        source = site.sources[0].shape
        self._left = len(layer.windows[1]) // 2 - wiring.axes(source)[1].before
        self._floor, (self._rows, self._columns) = layer.floor, map(np.array, layer.windows)
        self._kept = np.zeros((site.n_rows, 3, width, site.batch), site.master)
        self._row = (2, source[1], site.batch)
        self._size = math.prod(self._row)

    def up(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Sums over channels and columns for each row of the input, then over rows."""
        own, window, operations = self.site.rows, self.site.windows[0], self.site.operations
        x, height, floor = self.arrays.sources[0], self.site.sources[0].n_rows, self._floor
        sums, scratch = np.zeros((len(x), *self._row)), self._scratch(np.dtype(np.float64))

        def add(start: int, stop: int) -> None:
            run = start, stop
            with scratch.lent(self._size) as room:
                row = room.reshape(self._row)
                add_channels(rows_of(x, run, window), rows_of(sums, run, window), row, self._columns)

        def find(start: int, stop: int) -> None:
            state, kept = (rows_of(array, (start, stop), own) for array in (self.arrays.state, self._kept))
            with scratch.lent(self._size) as room:
                row = room.reshape(self._row)
                normalise(x, sums, window[0], height, state, kept, row, self._rows, floor, start, self._left)

        def call() -> None:
            self.team.split(*window, add, operations=operations)
            self.team.split(*own, find, operations=operations)

        add(window[0], window[0])
        find(own[0], own[0])
        return call

    def errors(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """What each window that holds these rows returns, then its share for each state."""
        (first, last), half, (begin, end) = (
            self.site.rows,
            len(self._rows) // 2,
            BoxSet.of_rows(*rows).hull[0],
        )
        heard = max(begin - half, first), min(end + half, last)
        heard = heard if heard[0] < heard[1] else (first, first)
        returned = np.zeros((heard[1] - heard[0], *self._row), self.site.master)
        return in_turn(self._returning(returned, heard), self._spreading(returned, heard, rows, accumulate))

    def _returning(self, returned: Array, heard: tuple[int, int]) -> Call:
        """What the windows of these own rows return."""
        own, window, operations = self.site.rows, self.site.windows[0], self.site.operations
        x, delta = self.arrays.sources[0], self.arrays.own_errors
        scratch, columns = self._scratch(self.site.master), self._columns.astype(self.site.master)

        def work(start: int, stop: int) -> None:
            run = start, stop
            inputs, into = rows_of(x, run, window), rows_of(returned, run, heard)
            given, kept = (rows_of(array, run, own) for array in (delta, self._kept))
            with scratch.lent(self._size) as room:
                find_returned(inputs, given, kept, into, room.reshape(self._row), columns, self._left)

        work(heard[0], heard[0])
        return lambda: self.team.split(*heard, work, operations=operations)

    def _spreading(self, returned: Array, heard: tuple[int, int], rows: Spans, accumulate: bool) -> Call:
        """Shares it out to these rows of the input."""
        (first, _), (window, _), operations = self.site.rows, self.site.windows[0], self.site.operations
        x, delta, kept = self.arrays.sources[0], self.arrays.own_errors, self._kept
        out, errors_window = self.arrays.errors_of(0), self.site.error_windows[0]
        scratch, weights = self._scratch(self.site.master), self._rows.astype(self.site.master)

        def work(start: int, stop: int) -> None:
            place = rows_of(out, (start, stop), errors_window)
            given = x, window, delta, kept, first, returned, heard[0], weights, accumulate
            with scratch.lent(self._size) as room:
                find_errors(place, start, *given, room.reshape(self._row), self._left)

        def call() -> None:
            for run in rows:
                self.team.split(*run, work, operations=operations)

        work(errors_window[0], errors_window[0])
        return call

    def _scratch(self, dtype: np.dtype[Any]) -> Scratch:
        """A row for each thread."""
        scratch = Scratch(self.team.threads, dtype)
        scratch.reserve(self._size)
        return scratch
