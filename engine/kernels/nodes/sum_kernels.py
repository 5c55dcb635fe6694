"""Nodes of a user's own that take weighted sums: products in the loops of the local layers, the rest in loops
generated from the user's two functions.

The errors of sums, from which everything downward follows, are computed where they are needed into an array
of their own: those of states may still be wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from partita.engine.kernels.calls import bound, sequence, split_rows
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext, no_op
from partita.engine.kernels.local import PatchSumKernel
from partita.engine.kernels.local_loops import add_bias_gradient, bias_gradient
from partita.engine.kernels.nodes.full_loops import (
    Full,
    full_errors,
    full_gradient,
    full_sums,
    turned_inputs,
    turned_size,
)
from partita.engine.kernels.nodes.loops import SumLoops
from partita.engine.kernels.parameters import is_per_node
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.tiles.scratch import Scratch
from partita.engine.kernels.views import columns, rows_of
from partita.layers import connectivity
from partita.layers.box import Box, BoxSet, Spans

_CHUNK_BYTES = 1 << 17
"""Of sums that are finished at once."""


class _OwnFunctions:
    """The two functions of the node, over rows of its layer."""

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool, loops: SumLoops) -> None:
        (source,) = context.sources
        self._context, self._pool, self._loops = context, pool, loops
        self._state, self._error = arrays.output, arrays.grad_output
        fan_in = context.grid.connectivity.fan_in(source.shape)
        of_nodes = [is_per_node(parameter, context.grid) for parameter in context.grid.parameters]
        pairs = zip(arrays.parameters, of_nodes, strict=True)
        self._given = (fan_in, *(parameter.reshape(-1) for parameter, is_own in pairs if is_own))
        self.of_nodes = [i for i, is_own in enumerate(of_nodes) if is_own]
        turns = loops.turn is not None and arrays.grad_output is not None
        self.delta = np.zeros_like(arrays.own_grad) if turns else arrays.grad_output

    def finish(self, sums: Array, state: Array, begin: int) -> None:
        """Turns the sums of some nodes into states, `[node, example]` both, and one array unless in bfloat16;
        `begin` nodes stand before them.
        """
        given = self._given if sums is state else (*self._given, sums)
        self._loops.finish(*given, state, begin)

    def turn(self, rows: tuple[int, int]) -> Call:
        """Computes the errors of the sums of these rows."""
        loop, own = self._loops.turn, self._context.rows
        if loop is None or self.delta is self._error or self._error is None or self.delta is None:
            return no_op
        per_row, arrays = self._context.grid.nodes_per_row, (self._state, self._error, self.delta)

        def work(start: int, stop: int) -> None:
            assert loop is not None
            of_rows = (columns(rows_of(array, (start, stop), own)) for array in arrays)
            loop(*self._given, *of_rows, (start - own[0]) * per_row)

        operations = float(per_row * self._context.batch * (rows[1] - rows[0]))
        return lambda: self._pool.split(*rows, work, operations=operations)

    def gradient_of_nodes(self, out: Sequence[Array], rows: tuple[int, int], *, accumulate: bool) -> Call:
        """The gradient of the node's own parameters: the errors of the sums, over the examples."""
        if not self.of_nodes:
            return no_op
        assert self.delta is not None
        delta = columns(rows_of(self.delta, rows, self._context.rows))
        sums = (out[i].reshape(-1) for i in self.of_nodes)
        add = add_bias_gradient if accumulate else bias_gradient
        return sequence(*(split_rows(self._pool, add, delta, place) for place in sums))


class NodePatchSumKernel(PatchSumKernel):
    """A node's weighted sum of a patch of a picture."""

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool, loops: SumLoops) -> None:
        self._own, self._weights = _OwnFunctions(context, arrays, pool, loops), loops.weight
        weight = arrays.parameters[loops.weight]
        super().__init__(context, replace(arrays, parameters=(weight,), grad_output=self._own.delta), pool)

    def finish(self, sums: Array, state: Array, begin: int) -> None:
        """Runs what `upward` does with its sum."""
        self._own.finish(sums, state, begin)

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """The products, after the errors of the sums that reach these rows."""
        products = super().backward_input(source, rows, accumulate=accumulate)
        return sequence(self._own.turn(self._receivers(rows)), products)

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """The products, after the errors of the sums of these rows."""
        asked = rows or self.context.rows
        products = super().backward_parameters((out[self._weights],), asked, accumulate=accumulate)
        of_nodes = self._own.gradient_of_nodes(out, asked, accumulate=accumulate)
        return sequence(self._own.turn(asked), products, of_nodes)

    def _receivers(self, rows: Spans) -> tuple[int, int]:
        """The machine's rows that hear one of these rows of the input."""
        grid, (source,), (start, stop) = self.context.grid, self.context.sources, self.context.rows
        heard = (
            grid.connectivity.source_rows(Box.of_rows(row, row + 1), grid.shape, source.shape)
            for row in range(start, stop)
        )
        asked = BoxSet.of_rows(*rows)
        found = [row for row, of_row in enumerate(heard, start) if of_row.overlaps(asked)]
        return (found[0], found[-1] + 1) if found else (start, start)


class NodeFullSumKernel(Kernel):
    """A node's weighted sum of the whole input."""

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool, loops: SumLoops) -> None:
        super().__init__(context, arrays, pool)
        self._own, self._weights = _OwnFunctions(context, arrays, pool, loops), loops.weight
        self._x, self._weight = arrays.inputs[0].reshape(-1), arrays.parameters[loops.weight].reshape(-1)
        self._delta = np.zeros(0, context.dtype) if self._own.delta is None else self._own.delta.reshape(-1)
        per_row = context.grid.nodes_per_row
        self._full = Full(context.n_rows * per_row, context.sources[0].n_nodes, context.batch)
        self._scratch = Scratch(pool.threads, context.master)

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Products of the nodes, some at a time, and what `upward` does with them."""
        if not last:
            return no_op
        full, state, portion = self._full, columns(self.arrays.output), self._portion
        given, in_place = (self._x, self._weight), self.context.dtype == self.context.master
        size = 0 if in_place else portion * full.batch
        self._scratch.reserve(size)

        def work(start: int, stop: int) -> None:
            with self._scratch.lent(size) as room:
                for begin in range(start, stop, portion):
                    states = state[begin : min(begin + portion, stop)]
                    sums = states if in_place else room[: states.size].reshape(states.shape)
                    full_sums(sums.reshape(-1), *given, begin, begin + len(states), full)
                    self._own.finish(sums, states, begin)

        with self._scratch.lent(0) as room:
            bound(full_sums, room, *given, 0, 0, full)
        return self._split((0, full.nodes), work)

    @property
    def _portion(self) -> int:
        """Nodes whose sums are finished at once."""
        return max(
            1, min(_CHUNK_BYTES // (self._full.batch * self.context.master.itemsize), self._full.nodes)
        )

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Products of the senders with all nodes, after the errors of their sums."""
        full, (origin, _), stored = self._full, self.context.grad_windows[0], self.arrays.grad_input(0)
        out, per_row = stored.reshape(-1), self.context.sources[0].nodes_per_row
        given, window = (out, self._sums, self._weight, self._delta), origin * per_row

        def work(start: int, stop: int) -> None:
            full_errors(*given, (start, stop), window, accumulate, full)

        bound(full_errors, *given, (0, 0), window, accumulate, full)
        runs = (self._split((start * per_row, stop * per_row), work) for start, stop in rows)
        return sequence(self._own.turn(self.context.rows), *runs)

    @cached_property
    def _sums(self) -> Array:
        """Where errors of the input are summed: where they belong, or in room of a wider type."""
        out = self.arrays.grad_input(0).reshape(-1)
        return out if self.context.dtype == self.context.master else np.zeros(out.shape, self.context.master)

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Products of errors and inputs, after the errors of the sums of these rows."""
        asked, full, per_row = rows or self.context.rows, self._full, self.context.grid.nodes_per_row
        first, last = ((row - self.context.rows[0]) * per_row for row in asked)
        weight, size = out[self._weights].reshape(-1), turned_size(full, self.context.master.itemsize)
        self._scratch.reserve(size)

        def work(start: int, stop: int) -> None:
            with self._scratch.lent(size) as turned:
                turned_inputs(turned, self._x, full)
                full_gradient(weight, turned, self._delta, start, stop, first, full, accumulate)

        with self._scratch.lent(size) as turned:
            bound(turned_inputs, turned, self._x, full)
            bound(full_gradient, weight, turned, self._delta, 0, 0, 0, full, accumulate)
        own = self._own.turn(asked), self._split((first, last), work)
        return sequence(*own, self._own.gradient_of_nodes(out, asked, accumulate=accumulate))

    def _split(self, run: tuple[int, int], work: Callable[[int, int], None]) -> Call:
        operations = 2.0 * (run[1] - run[0]) * self._weight.size / max(self._full.nodes, 1) * self._full.batch
        return lambda: self.pool.split(*run, work, operations=operations)


def sum_kernel(context: KernelContext, arrays: Arrays, pool: ThreadPool, loops: SumLoops) -> Kernel | None:
    """The kernel for a node's weighted sum; None where its wiring has none, or nodes share weights."""
    wiring = context.grid.connectivity
    if context.grid.shares_weights:
        return None
    if type(wiring) is connectivity.Full:
        return NodeFullSumKernel(context, arrays, pool, loops)
    if type(wiring) is connectivity.Patch and wiring.is_box and len(context.sources[0].shape) == 3:
        return NodePatchSumKernel(context, arrays, pool, loops)
    return None
