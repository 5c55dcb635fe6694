"""The kernel of any node definition: loops over nodes, edges and examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from partita.engine.kernels.calls import sequence
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext, no_op
from partita.engine.kernels.nodes.loops import BackwardLoops
from partita.engine.kernels.nodes.wiring import Wiring
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.views import columns, rows_of
from partita.engine.numerics import downcast_array, stored, upcast_array
from partita.layers.box import Spans

Loop = Callable[..., None]


class NodeLoopKernel(Kernel):
    """Runs compiled `upward` and `downward`; the latter twice for each node, for errors and gradients."""

    def __init__(
        self,
        context: KernelContext,
        arrays: Arrays,
        pool: ThreadPool,
        up: Loop,
        down: BackwardLoops | None,
    ) -> None:
        super().__init__(context, arrays, pool)
        self._up, self._down, self._wiring = up, down, Wiring.of(context)
        self._state = columns(arrays.output)
        self._parameters = tuple(parameter.reshape(-1) for parameter in arrays.parameters)
        self._given = tuple(map(columns, arrays.inputs))
        self._firsts = np.cumsum([0, *map(len, self._given)])
        w, x = self._wiring, self._given[0]
        if len(self._given) > 1:
            x = np.zeros((self._firsts[-1], context.batch), context.dtype)
        padding = stored(np.full(context.batch, context.grid.layer.padding_value), context.dtype)
        self._x = x
        self._table = (x, padding, w.senders, w.firsts, w.counts, w.edges, w.width)
        self.gradient_by_rows = not context.grid.shares_weights

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Runs `upward` for every node and example; a sum in blocks waits for all of them."""
        if not last:
            return no_op
        loop, given = self._up, (*self._table, *self._parameters, self._state)

        def work(start: int, stop: int) -> None:
            loop(*given, *self._nodes(start, stop))

        compute = self._split((self.context.rows,), work)
        return compute if len(self._given) == 1 else sequence(self._join, compute)

    def _join(self) -> None:
        """Copies the inputs, one behind the other."""
        np.concatenate(self._given, out=self._x)

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Runs `downward` for the nodes that read these rows, in ascending order."""
        down, wiring, window = self._trained, self._wiring, self.context.grad_windows[source]
        per_row = self.context.sources[source].nodes_per_row
        before = self._firsts[source] - self.context.windows[source][0] * per_row
        stored = self.arrays.grad_input(source)
        sums = stored if stored.dtype == self.context.master else np.zeros(stored.shape, self.context.master)
        grad = columns(self.arrays.own_grad)
        given = (*self._table, wiring.least, wiring.most, *self._parameters, self._state, grad)

        def work(start: int, stop: int) -> None:
            place, out = rows_of(sums, (start, stop), window), rows_of(stored, (start, stop), window)
            if not accumulate:
                place[...] = 0
            elif place.dtype != out.dtype:
                upcast_array(out, place)
            first, last = before + start * per_row, before + stop * per_row
            down.backward_input(*given, columns(place), first, last)
            if place.dtype != out.dtype:
                downcast_array(place, out)

        return self._split(rows, work)

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
        origin = int(self._wiring.edges[begin]), begin

        def work(start: int, stop: int) -> None:
            loop(*given, *self._nodes(start, stop), *origin)

        add = self._split((asked,), work, alone=shares)

        def call() -> None:
            for gradient in sums:
                gradient[...] = 0
            add()

        return add if accumulate else call

    def _split(self, rows: Spans, work: Callable[[int, int], None], *, alone: bool = False) -> Call:
        """Spreads work on rows over the threads; with `alone`, one does all."""
        operations = self.context.operations

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

    @property
    def _trained(self) -> BackwardLoops:
        assert self._down is not None, "there is no backward loop"
        return self._down
