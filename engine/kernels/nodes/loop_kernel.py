"""The kernel of any node definition: loops over nodes, edges and examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext, no_op
from partita.engine.kernels.nodes.loops import BackwardLoops, ForwardLoop
from partita.engine.kernels.nodes.wiring import Wiring
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.views import columns, rows_of
from partita.engine.numerics import downcast_array, upcast_array
from partita.layers.box import Spans

_SLOWER = 50.0
"""Operations of a vectorised loop that take as long as one of a user's scalar function, roughly."""


class NodeLoopKernel(Kernel):
    """Runs compiled `upward` and `downward`; the latter twice for each node, for errors and gradients."""

    def __init__(
        self,
        context: KernelContext,
        arrays: Arrays,
        pool: ThreadPool,
        up: ForwardLoop,
        down: BackwardLoops | None,
    ) -> None:
        super().__init__(context, arrays, pool)
        self._up, self._down, self._wiring = up, down, Wiring.of(context)
        self._state = columns(arrays.output)
        self._parameters = tuple(parameter.reshape(-1) for parameter in arrays.parameters)
        w, x = self._wiring, columns(arrays.inputs[0])
        padding = np.full(context.batch, context.grid.layer.padding_value, context.master)
        if context.dtype != context.master:
            padding = downcast_array(padding, np.empty(context.batch, context.dtype))
        self._table = (x, padding, w.senders, w.firsts, w.counts, w.edges, w.owns, w.width)
        self.gradient_by_rows = not context.grid.shares_weights

    @property
    def in_vectors(self) -> bool:
        """Whether both functions run with the examples innermost."""
        return self._up.in_vectors and (self._down is None or self._down.in_vectors)

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Runs `upward` for every node and example; a sum in blocks waits for all of them."""
        if not last:
            return no_op
        loop, given = self._up.forward, (*self._table, *self._parameters, self._state)

        def work(start: int, stop: int) -> None:
            loop(*given, *self._nodes(start, stop))

        return self._split((self.context.rows,), work, in_vectors=self._up.in_vectors)

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Runs `downward` for the nodes that read these rows, in ascending order."""
        down, wiring, window = self._trained, self._wiring, self.context.grad_windows[0]
        per_row, first = self.context.sources[0].nodes_per_row, self.context.windows[0][0]
        stored, sums = self.arrays.grad_input(0), self._sums
        grad = columns(self.arrays.own_grad)
        given = (*self._table, wiring.least, wiring.most, *self._parameters, self._state, grad)

        def work(start: int, stop: int) -> None:
            place, out = rows_of(sums, (start, stop), window), rows_of(stored, (start, stop), window)
            if not accumulate:
                place[...] = 0
            elif place.dtype != out.dtype:
                upcast_array(out, place)
            down.backward_input(*given, columns(place), (start - first) * per_row, (stop - first) * per_row)
            if place.dtype != out.dtype:
                downcast_array(place, out)

        return self._split(rows, work, in_vectors=down.in_vectors)

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Runs `downward` for every node and adds up the examples in their order."""
        down, asked = self._trained, rows or self.context.rows
        loop = down.backward_parameters
        if loop is None:
            return no_op
        sums, (begin, _) = tuple(gradient.reshape(-1) for gradient in out), self._nodes(*asked)
        given = (*self._table, *self._parameters, self._state, columns(self.arrays.own_grad), *sums)
        shares = self.context.grid.shares_weights
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
        operations = self.context.operations * (1.0 if in_vectors else _SLOWER)

        def call() -> None:
            for run in rows:
                if alone:
                    work(*run)
                else:
                    self.pool.split(*run, work, operations=operations)

        return call

    def _nodes(self, start: int, stop: int) -> tuple[int, int]:
        per_row = self.context.grid.nodes_per_row
        return (start - self.context.rows[0]) * per_row, (stop - self.context.rows[0]) * per_row

    @cached_property
    def _sums(self) -> Array:
        """The array for sums of input gradients: the gradient window, or scratch of a wider type."""
        stored = self.arrays.grad_input(0)
        return (
            stored
            if self.context.dtype == self.context.master
            else np.zeros(stored.shape, self.context.master)
        )

    @property
    def _trained(self) -> BackwardLoops:
        assert self._down is not None, "there is no backward loop"
        return self._down
