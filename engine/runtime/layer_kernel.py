"""A layer's kernel on one machine: bound to the machine's windows, with the copies around its calls.

A tile of a picture is a whole grid to its kernel: columns are numbered from 0, and so are those of the part
of the input that it receives. Arrays are taken from the windows as they lie. Where a window has other columns
than the kernel knows, the kernel has an array of its own, and its numbers are copied before or after a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from partita.engine.kernels.calls import sequence
from partita.engine.kernels.kernel import Array, Arrays, Call, KernelContext, PartialSums, no_op
from partita.engine.kernels.registry import build
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.views import rows_of
from partita.engine.runtime.buffers import Buffers
from partita.engine.runtime.window import Window
from partita.layers.box import NOTHING, Box, BoxSet, Spans
from partita.layers.graph import Grid
from partita.partitioner.ir.buffer import Buffer, BufferKind, Edge, activations

Columns: TypeAlias = tuple[int, int] | None
"""`[left, right)` of a picture in a plan that cuts some picture into tiles; else None."""


class Bound(NamedTuple):
    """Rows `[start, stop)` of an input (or of its gradient), and the kernel's array of them, if any."""

    rows: tuple[int, int]
    array: Array | None


class LayerKernel:
    """The kernel of one layer, for the micro-batches that share its arrays.

    Attributes:
        kernel: bound to its arrays.
        before_forward, after_forward, before_backward: copies to be made around its calls.
        before_sum: that of parameters, to be made before every call of the forward pass.
    """

    def __init__(self, buffers: Buffers, grid: Grid, number: int | None, pool: ThreadPool) -> None:
        """Finds the arrays, and builds the kernel.

        Args:
            buffers: the machine's windows.
            grid: the layer.
            number: of the micro-batches of a step; None where a step has only one.
            pool: the threads of the machine's kernels.
        """
        owned, machine = buffers.plan.ownership, buffers.machine
        own = owned.rows(grid.name, machine)
        assert own, f"machine {machine} owns nothing of {grid.name}"
        self._owned, self._machine, self._buffers, self._number = owned, machine, buffers, number
        self._layer, self._gathered = grid.name, list[Call]()
        self._parameters, self.before_sum = self._taken_parameters()
        edges = [Edge(source, grid.name, k) for k, source in enumerate(grid.sources)]
        self._columns = [self._columns_of(edge) for edge in edges]
        pairs = list(zip(edges, self._columns, strict=True))
        inputs = [self._input(*pair) for pair in pairs]
        self._grad_inputs = [self._grad_input(*pair) for pair in pairs]
        self._grad_windows = [buffers.windows.get(self._at(edge.buffer)) for edge in edges]
        output = self._at(activations(grid.name))
        self.before_forward = sequence(*self._gathered, self.before_sum)
        self.after_forward = self._copy_tile(output, own, out=True)
        grad_output, self.before_backward = None, no_op
        first = next((self._at(edge.buffer) for edge in owned.grad_edges(grid.name)), None)
        if first in buffers.windows:
            grad_output = buffers.own(first, own)
            self.before_backward = self._copy_tile(first, own, out=False)
        self.kernel = build(
            self._context(grid, own, inputs, [self._source(*pair) for pair in pairs]),
            self._arrays(buffers.own(output, own), grad_output, inputs, own.hull[0]),
            pool,
        )

    def _context(
        self, grid: Grid, own: BoxSet, inputs: Sequence[Bound], sources: Sequence[Grid]
    ) -> KernelContext:
        plan, columns = self._buffers.plan, own.hull.columns
        machine = plan.cluster.machines[self._machine]
        return KernelContext(
            self._own_columns(grid, columns),
            own.hull[0],
            tuple(sources),
            tuple(bound.rows for bound in inputs),
            tuple(bound.rows for bound in self._grad_inputs),
            plan.sizes.examples(activations(grid.name)),
            plan.precision,
            machine.threads,
            machine.device,
            plan.batch,
            self._owned.input_span(grid.name, self._machine),
            plan.products_of(self._machine),
            self._buffers.program.kind.in_training,
            None if columns is None else (columns[0], grid.shape[1]),
        )

    def _arrays(
        self, output: Array, grad_output: Array | None, inputs: Sequence[Bound], rows: tuple[int, int]
    ) -> Arrays:
        buffers, layer = self._buffers, self._layer
        kinds = (BufferKind.SUMMARY, BufferKind.GRAD_SUMMARY)
        windows = (buffers.windows.get(self._at(Buffer(kind, layer))) for kind in kinds)
        summaries, grad_summaries = (None if window is None else window.array for window in windows)
        return Arrays(
            inputs=tuple(bound.array for bound in inputs if bound.array is not None),
            output=output,
            grad_output=grad_output,
            grad_inputs=tuple(bound.array for bound in self._grad_inputs),
            parameters=self._parameters,
            summaries=summaries,
            grad_summaries=grad_summaries,
            partial=self._partial_sums(rows) if self._owned.is_input_split(layer) else None,
        )

    def _taken_parameters(self) -> tuple[tuple[Array, ...], Call]:
        """The parameters of the machine's rows, each in one piece, and the copies that make it so."""
        buffers, layer = self._buffers, self._layer
        if layer not in self._owned.graph.tied:
            shared = buffers.parameters_in(Buffer(BufferKind.PARAMETERS, layer))
            return tuple(shared or buffers.vectors.views(layer, buffers.vectors.read)), no_op
        copies, found = list[Call](), list[Array]()
        slices = self._owned.used_slices(layer, self._machine)
        for held, array in zip(slices, buffers.used(BufferKind.PARAMETERS, layer), strict=True):
            if array.shape == held.shape and held.runs[2] == 0:
                found.append(array)
                continue
            found.append(buffers.device.zeros(held.shape, buffers.vectors.read.dtype))
            copies.append(self._copy(found[-1].reshape(array.shape), array))
        return tuple(found), sequence(*copies)

    def after_backward_input(self, source: int, rows: Spans) -> Call:
        """The copies to be made when the kernel has written the gradient of these rows of an input."""
        window, columns = self._grad_windows[source], self._columns[source]
        held, array = self._grad_inputs[source]
        if columns is None or window is None or array is None or window.columns == columns:
            return no_op
        pairs = [(window.of(BoxSet((Box((run, columns)),)))[0], rows_of(array, run, held)) for run in rows]
        return sequence(*(self._copy(target, given) for target, given in pairs))

    def _at(self, buffer: Buffer) -> Buffer:
        """The buffer of these micro-batches."""
        return buffer.numbered(self._number)

    def _columns_of(self, edge: Edge) -> Columns:
        owned = self._owned
        return owned.kernel_columns(edge, self._machine) if owned.is_boxed(edge.layer) else None

    def _input(self, edge: Edge, columns: Columns) -> Bound:
        """All rows here of an input; of a loss that is split over machines, the machine's own scores only."""
        window, own = (
            self._buffers[self._at(activations(edge.layer))],
            self._owned.rows(edge.layer, self._machine),
        )
        scores = (
            self._owned.primary_rows(edge.layer, self._machine)
            if self._owned.loss_shards(edge.consumer)
            else NOTHING
        )
        if scores and scores != own:  # of copies, those that no machine before it has
            return Bound(scores.hull[0], window.of(scores)[0])
        if own and (scores or self._is_own(edge, own, columns, window)):
            return Bound(own.hull[0], self._buffers.own(self._at(activations(edge.layer)), own))
        if columns is None or window.columns == columns:
            return Bound(window.rows, window.array)
        rows = self._owned.needed(edge, self._machine).hull[0]
        shape = (rows[1] - rows[0], columns[1] - columns[0], *window.array.shape[2:])
        array = self._buffers.zeros_like(activations(edge.layer), shape)
        if len(array):
            self._gathered.append(self._copy(array, window.of(BoxSet((Box((rows, columns)),)))[0]))
        return Bound(rows, array)

    def _is_own(self, edge: Edge, own: BoxSet, columns: Columns, window: Window) -> bool:
        """Returns whether the machine's own tile is all that the kernel reads, and lies in an array of its
        own.
        """
        if columns is None or window.columns == columns or own.hull.columns != columns:
            return False
        return not self._owned.needed(edge, self._machine) - own

    def _grad_input(self, edge: Edge, columns: Columns) -> Bound:
        window = self._buffers.windows.get(self._at(edge.buffer))
        if window is None:
            return Bound((0, 0), None)
        if columns is None or window.columns == columns:
            return Bound(window.rows, window.array)
        height, _, *rest = window.array.shape
        shape = (height, columns[1] - columns[0], *rest)
        return Bound(window.rows, self._buffers.zeros_like(edge.buffer, shape))

    def _own_columns(self, grid: Grid, own: Columns) -> Grid:
        """The machine's columns of the layer, over those of its inputs that it needs."""
        if own is None:
            return grid
        whole = own == (0, grid.shape[1])
        for source, needed in zip(grid.sources, self._columns, strict=True):
            shape = self._owned.graph[source].shape
            if not whole or (needed is not None and needed != (0, shape[1])):
                return grid.within(own, needed, shape)
        return grid

    def _source(self, edge: Edge, columns: Columns) -> Grid:
        source = self._owned.graph[edge.layer]
        if columns is None or columns == (0, source.shape[1]):
            return source
        return source.within(columns, None, None)

    def _copy_tile(self, buffer: Buffer, own: BoxSet, *, out: bool) -> Call:
        """Copies the machine's own tile out into its window, or in from there, where the two lie apart."""
        if buffer not in self._buffers.tiles:
            return no_op
        tile, place = self._buffers.tiles[buffer], self._buffers[buffer].of(own)[0]
        return self._copy(place, tile) if out else self._copy(tile, place)

    def _partial_sums(self, rows: tuple[int, int]) -> PartialSums:
        """The sums of all machines for these rows, in the machines' order, and the gradient of all rows."""
        layer, windows = self._layer, self._buffers.windows
        own, terms = Buffer(BufferKind.PARTIAL_SUMS, layer), []
        for machine in sorted(piece.machine for piece in self._owned.of(layer)):
            window = windows[self._at(own if machine == self._machine else own.received_from(machine))]
            terms.append(window.of(BoxSet((Box((rows,)),)))[0])
        grad = windows.get(self._at(Buffer(BufferKind.GRAD_PREACTIVATION, layer)))
        biased = self._owned.primary_rows(layer, self._machine).hull
        return PartialSums(
            windows[self._at(own)].array, tuple(terms), None if grad is None else grad.array, biased[0]
        )

    def _copy(self, target: Array, source: Array) -> Call:
        device = self._buffers.device
        return lambda: device.copy(target, source)
