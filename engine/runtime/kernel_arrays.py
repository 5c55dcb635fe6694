"""What a layer's kernel is given of a machine's windows, and what is copied between the two.

A tile of a picture is a whole grid to its kernel: columns are numbered from 0, and so are those of the part
of the input that it is given. Arrays are taken from the windows as they lie. Where a window has other columns
than the kernel knows, the kernel has an array of its own, and its numbers are copied before or after a call.

It must not know what a kernel computes.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from partita.engine.kernels.calls import sequence
from partita.engine.kernels.kernel import Array, Call, no_op
from partita.engine.kernels.views import rows_of
from partita.engine.runtime.buffers import Buffers
from partita.engine.runtime.window import Window
from partita.layers.box import NOTHING, Box, BoxSet, Spans
from partita.layers.graph import Grid
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.ir.buffer import Buffer, Edge, activations

Columns: TypeAlias = tuple[int, int] | None
"""`[left, right)` of a picture in a plan that cuts some picture into tiles; else None."""


class Heard(NamedTuple):
    """Rows `[start, stop)` of an input's states, and the array in which a kernel has them."""

    rows: tuple[int, int]
    array: Array


class Returned(NamedTuple):
    """Rows `[start, stop)` of an input's errors, and the array into which a kernel writes them, if any."""

    rows: tuple[int, int]
    array: Array | None


class KernelArrays:
    """The arrays of one layer on one machine.

    Attributes:
        grid: the layer as its kernel knows it.
        rows: the machine's own, `[start, stop)`.
        sources: the inputs, as the kernel knows them.
        heard: of each input, what the kernel reads.
        returned: for each input, where the kernel writes errors; None where it needs none.
        state: of the machine's own rows.
        delta: their errors; None where nothing comes down.
        before_up, after_up, before_delta: what is copied then.
    """

    def __init__(
        self, owned: Ownership, machine: int, buffers: Buffers, grid: Grid, number: int | None = None
    ) -> None:
        """Finds the arrays.

        Args:
            owned: who owns what.
            machine: whose.
            buffers: its windows.
            grid: the layer.
            number: of the portions of a step whose arrays these are; None where a step is of one.
        """
        own = owned.rows(grid.name, machine)
        assert own, f"machine {machine} owns nothing of {grid.name}"
        self._owned, self._machine, self._buffers, self._consumer = owned, machine, buffers, grid.name
        self._number = number
        self._gathered: list[Call] = []
        edges = [Edge(source, grid.name, k) for k, source in enumerate(grid.sources)]
        self._columns = [self._columns_of(edge) for edge in edges]
        self.heard = [self._hear(*pair) for pair in zip(edges, self._columns, strict=True)]
        self.returned = [self._return(*pair) for pair in zip(edges, self._columns, strict=True)]
        self._error_windows = [buffers.windows.get(self._at(edge.buffer)) for edge in edges]
        self.rows = own.hull[0]
        self.grid = self._narrow(grid, own.hull.columns)
        self.sources = tuple(self._narrow_source(*pair) for pair in zip(edges, self._columns, strict=True))
        self.before_up = sequence(*self._gathered)
        self.state = buffers.own(self._at(activations(grid.name)), own)
        self.after_up = self._brought(self._at(activations(grid.name)), own, out=True)
        self.delta, self.before_delta = None, no_op
        first = next((self._at(edge.buffer) for edge in owned.edges(grid.name)), None)
        if first in buffers.windows:
            self.delta, self.before_delta = buffers.own(first, own), self._brought(first, own, out=False)

    def after_errors(self, source: int, rows: Spans) -> Call:
        """What is copied when the kernel has written the errors of these rows of an input."""
        window, (held, array), columns = (
            self._error_windows[source],
            self.returned[source],
            self._columns[source],
        )
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

    def _hear(self, edge: Edge, columns: Columns) -> Heard:
        """All that is here of an input; but a judge hears its own scores, and no others."""
        window, own = (
            self._buffers[self._at(activations(edge.layer))],
            self._owned.rows(edge.layer, self._machine),
        )
        judged = (
            self._owned.primary_rows(edge.layer, self._machine)
            if self._owned.loss_shards(edge.consumer)
            else NOTHING
        )
        if judged and judged != own:  # of copies, those that no machine before it has
            return Heard(judged.hull[0], window.of(judged)[0])
        if own and (judged or self._is_own(edge, own, columns, window)):
            return Heard(own.hull[0], self._buffers.own(self._at(activations(edge.layer)), own))
        if columns is None or window.columns == columns:
            return Heard(window.rows, window.array)
        rows = self._owned.needed(edge, self._machine).hull[0]
        shape = (rows[1] - rows[0], columns[1] - columns[0], *window.array.shape[2:])
        array = self._buffers.room(activations(edge.layer), shape)
        if len(array):
            self._gathered.append(self._copy(array, window.of(BoxSet((Box((rows, columns)),)))[0]))
        return Heard(rows, array)

    def _is_own(self, edge: Edge, own: BoxSet, columns: Columns, window: Window) -> bool:
        """Whether the machine's own tile is all that is heard, and lies in an array of its own."""
        if columns is None or window.columns == columns or own.hull.columns != columns:
            return False
        return not self._owned.needed(edge, self._machine) - own

    def _return(self, edge: Edge, columns: Columns) -> Returned:
        window = self._buffers.windows.get(self._at(edge.buffer))
        if window is None:
            return Returned((0, 0), None)
        if columns is None or window.columns == columns:
            return Returned(window.rows, window.array)
        height, _, *rest = window.array.shape
        shape = (height, columns[1] - columns[0], *rest)
        return Returned(window.rows, self._buffers.room(edge.buffer, shape))

    def _narrow(self, grid: Grid, own: Columns) -> Grid:
        """The machine's columns of the layer, over those that it hears."""
        if own is None:
            return grid
        whole = own == (0, grid.shape[1])
        for source, heard in zip(grid.sources, self._columns, strict=True):
            shape = self._owned.graph[source].shape
            if not whole or (heard is not None and heard != (0, shape[1])):
                return grid.within(own, heard, shape)
        return grid

    def _narrow_source(self, edge: Edge, columns: Columns) -> Grid:
        source = self._owned.graph[edge.layer]
        if columns is None or columns == (0, source.shape[1]):
            return source
        return source.within(columns, None, None)

    def _brought(self, buffer: Buffer, own: BoxSet, *, out: bool) -> Call:
        """Copies the machine's own tile out into its window, or in from there, where the two lie apart."""
        if buffer not in self._buffers.tiles:
            return no_op
        tile, place = self._buffers.tiles[buffer], self._buffers[buffer].of(own)[0]
        return self._copy(place, tile) if out else self._copy(tile, place)

    def _copy(self, target: Array, source: Array) -> Call:
        device = self._buffers.device
        return lambda: device.copy(target, source)
