"""Plays a node definition by loops over nodes, edges and examples, whatever the node computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, Site, nothing
from partita.engine.kernels.nodes.loops import DownLoops, UpLoop
from partita.engine.kernels.nodes.wiring import Wiring
from partita.engine.kernels.parallel import Team
from partita.engine.kernels.views import columns, rows_of
from partita.engine.numerics import narrow_array, widen_array
from partita.layers.box import Spans

_SLOWER = 50.0
"""How many operations of a vectorised loop take as long as one of a user's scalar function, roughly."""


class NodeLoopKernel(Kernel):
    """Runs compiled `upward` and `downward`, this twice for each node: once for the errors, once for the
    gradients.
    """

    def __init__(self, site: Site, arrays: Arrays, team: Team, up: UpLoop, down: DownLoops | None) -> None:
        super().__init__(site, arrays, team)
        self._up, self._down, self._wiring = up, down, Wiring.of(site)
        self._state = columns(arrays.state)
        self._parameters = tuple(parameter.reshape(-1) for parameter in arrays.parameters)
        w, x = self._wiring, columns(arrays.sources[0])
        padding = np.full(site.batch, site.grid.layer.padding_value, site.master)
        if site.dtype != site.master:
            padding = narrow_array(padding, np.empty(site.batch, site.dtype))
        self._table = (x, padding, w.senders, w.firsts, w.counts, w.edges, w.owns, w.width)
        self.gradient_by_rows = not site.grid.shares_weights

    @property
    def in_vectors(self) -> bool:
        """Whether both functions run with the examples innermost."""
        return self._up.in_vectors and (self._down is None or self._down.in_vectors)

    def up(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Runs `upward` for every node and example; a sum in blocks is taken at once when all of them are
        there.
        """
        if not last:
            return nothing
        loop, given = self._up.states, (*self._table, *self._parameters, self._state)

        def work(start: int, stop: int) -> None:
            loop(*given, *self._nodes(start, stop))

        return self._split((self.site.rows,), work, in_vectors=self._up.in_vectors)

    def errors(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Runs `downward` for the nodes that listen to these rows, in ascending order."""
        down, wiring, window = self._trained, self._wiring, self.site.error_windows[0]
        per_row, first = self.site.sources[0].nodes_per_row, self.site.windows[0][0]
        stored, sums = self.arrays.errors_of(0), self._sums
        delta = columns(self.arrays.own_errors)
        given = (*self._table, wiring.least, wiring.most, *self._parameters, self._state, delta)

        def work(start: int, stop: int) -> None:
            place, out = rows_of(sums, (start, stop), window), rows_of(stored, (start, stop), window)
            if not accumulate:
                place[...] = 0
            elif place.dtype != out.dtype:
                widen_array(out, place)
            down.errors(*given, columns(place), (start - first) * per_row, (stop - first) * per_row)
            if place.dtype != out.dtype:
                narrow_array(place, out)

        return self._split(rows, work, in_vectors=down.in_vectors)

    def gradient(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Runs `downward` for every node and adds up the examples in their order."""
        down, asked = self._trained, rows or self.site.rows
        loop = down.gradients
        if loop is None:
            return nothing
        sums, (begin, _) = tuple(gradient.reshape(-1) for gradient in out), self._nodes(*asked)
        given = (*self._table, *self._parameters, self._state, columns(self.arrays.own_errors), *sums)
        shares = self.site.grid.shares_weights
        origin = (0, 0) if shares else (int(self._wiring.edges[begin]), begin)

        def work(start: int, stop: int) -> None:
            loop(*given, *self._nodes(start, stop), *origin)

        add = self._split((asked,), work, in_vectors=down.in_vectors, alone=shares)

        def call() -> None:
            for gradient in sums:
                gradient[...] = 0
            add()

        return add if accumulate else call

    def _split(
        self, rows: Spans, work: Callable[[int, int], None], *, in_vectors: bool, alone: bool = False
    ) -> Call:
        """Spreads work on rows over the threads; with `alone`, one does all."""
        operations = self.site.operations * (1.0 if in_vectors else _SLOWER)

        def call() -> None:
            for run in rows:
                if alone:
                    work(*run)
                else:
                    self.team.split(*run, work, operations=operations)

        return call

    def _nodes(self, start: int, stop: int) -> tuple[int, int]:
        per_row = self.site.grid.nodes_per_row
        return (start - self.site.rows[0]) * per_row, (stop - self.site.rows[0]) * per_row

    @cached_property
    def _sums(self) -> Array:
        """Where errors of the input are summed: where they belong, or in room of a wider type."""
        stored = self.arrays.errors_of(0)
        return stored if self.site.dtype == self.site.master else np.zeros(stored.shape, self.site.master)

    @property
    def _trained(self) -> DownLoops:
        assert self._down is not None, "there is no way down"
        return self._down
