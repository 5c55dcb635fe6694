"""Lowering the way down: who computes which errors, adds them up and sends them, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partita.layers.box import Box, BoxSet
from partita.layers.graph import Grid
from partita.partitioner.assign.coverage import bands
from partita.partitioner.ir.buffer import Edge, activations
from partita.partitioner.ir.program import Op, Operand
from partita.partitioner.lower.messages import Message, Sum
from partita.partitioner.lower.partial_sums import exchange
from partita.partitioner.lower.windows import own_tile
from partita.partitioner.lower.writer import Writer


class Errors:
    """Writes the way down of a machine."""

    def __init__(self, writer: Writer, turns: Mapping[Edge, Sequence[Sum]]) -> None:
        """With the machine's turns in summing errors along each edge."""
        self.writer, self.owned, self.turns = writer, writer.owned, turns

    def write(self, grid: Grid) -> None:
        """Gathers the errors of the machine's rows of a layer, and computes those of its inputs."""
        own = self.writer.own(grid.name)
        error = self._gather(grid, own)
        if error is not None and (grid.layer.activation != "linear" or self._is_apart(error, own)):
            self.writer.emit(
                Op.GRAD_PREACTIVATION, error, Operand(activations(grid.name), own), accumulate=True
            )
        if error is not None and self.owned.is_input_split(grid.name):
            error = exchange(self.writer, grid, error)
        for k, source in enumerate(grid.sources):
            if source in self.writer.graph.needs_error:
                self._sum(Edge(source, grid.name, k), error)

    def _gather(self, grid: Grid, own: BoxSet) -> Operand | None:
        """Brings the errors of the machine's rows together; returns where (a loss is its own error: None)."""
        edges = self.owned.edges(grid.name)
        for edge in edges:
            arriving = self.writer.incoming.get(edge.buffer, [])
            if self.owned.crosses_tiles(edge):
                self._add_up(edge, arriving, own)
                continue
            if not self.owned.sums_by_machine(edge):
                for message in arriving:
                    self.writer.receive(message)
                continue
            turns = (turn for turn in self.turns.get(edge, ()) if turn.following is None)
            begun = BoxSet.union(*(turn.rows for turn in turns))
            for message in arriving:
                self.writer.receive_into_sum(message, begun)
                begun |= message.rows
        if not edges:
            return None
        self._join(edges)
        return Operand(edges[0].buffer, own)

    def _add_up(self, edge: Edge, arriving: Sequence[Message], own: BoxSet) -> None:
        """Adds what arrives in the order of the pieces; where nothing was before it, it is taken as it is."""
        begun = own & BoxSet.union(*self._bands(edge))
        for message in arriving:
            self.writer.receive_into_sum(message, begun)
            begun |= message.rows

    def _is_apart(self, error: Operand, own: BoxSet) -> bool:
        """Whether kernels take the gradient of the machine's own tile from an array of its own."""
        edge, machine = self.writer.access.edge(error.buffer), self.writer.machine
        return own_tile(self.owned, error.buffer, machine, self.owned.error_window(edge, machine)) is not None

    def _join(self, edges: tuple[Edge, ...]) -> None:
        """Adds the errors of all edges into the buffer of the first.

        A row to which nobody listens along the first edge still holds the sum of the step before (at first
        zero), so the first edge along which somebody does replaces it.
        """
        if len(edges) == 1:
            return
        begun = self.owned.consumed_rows(edges[0], self.writer.machine)
        for edge in edges[1:]:
            heard = self.owned.consumed_rows(edge, self.writer.machine)
            added, copied = heard & begun, heard - begun
            for rows, accumulate in ((added, True), (copied, False)):
                if rows:
                    target = Operand(edges[0].buffer, rows)
                    self.writer.emit(Op.ADD, target, Operand(edge.buffer, rows), accumulate=accumulate)
            begun = BoxSet.union(begun, heard)

    def _sum(self, edge: Edge, error: Operand | None) -> None:
        """Computes the errors of an input, first what others wait for, and sends them."""
        if self.owned.crosses_tiles(edge):
            self._sum_across(edge, error)
            return
        turns = sorted(
            self.turns.get(edge, ()), key=lambda turn: (turn.previous is not None, turn.following is None)
        )
        last = {turn.following: turn for turn in turns}
        for turn in turns:
            self._take_turn(turn, error)
            if turn.following is not None and last[turn.following] is turn:
                outgoing = self.writer.outgoing[edge.buffer]
                self.writer.send(next(m for m in outgoing if m.destination == turn.following))

    def _take_turn(self, turn: Sum, error: Operand | None) -> None:
        for message in self.writer.incoming.get(turn.edge.buffer, ()) if turn.previous is not None else ():
            if turn.previous == message.source:
                self.writer.receive(message)
        own = self.writer.access.own(turn.edge.consumer)
        self.writer.emit(
            Op.GRAD_INPUT,
            Operand(turn.edge.buffer, turn.rows),
            own if error is None else error,
            accumulate=turn.previous is not None,
        )

    def _sum_across(self, edge: Edge, error: Operand | None) -> None:
        """Computes all that the machine's receivers return, and sends each owner its share."""
        source = self.writer.access.own(edge.consumer) if error is None else error
        outgoing = self.writer.outgoing.get(edge.buffer, ())
        mine = [turn.rows for turn in self.turns.get(edge, ()) if turn.following is None]
        for band in sorted(self._bands(edge), key=lambda band: any(own.overlaps(band) for own in mine)):
            self.writer.emit(Op.GRAD_INPUT, Operand(edge.buffer, band), source)
            for message in outgoing:
                if message.rows.overlaps(band):
                    self.writer.send(message)

    def _bands(self, edge: Edge) -> list[BoxSet]:
        """What is computed at once of the errors along an edge: whole rows, as far as the kernel knows them.

        To patches, all; a layer that listens to everything goes by the owners' rows of tiles.
        """
        machine, consumer = self.writer.machine, self.owned.graph[edge.consumer]
        columns = self.owned.kernel_columns(edge, machine)
        needed = self.owned.grad_rows(edge, machine).across(columns)
        if not needed or consumer.layer.connectivity.ordered_errors:
            return [needed] if needed else []
        owners = bands([piece.box for piece in self.owned.of(edge.layer)])
        found = (needed & BoxSet((Box((band, columns)),)) for band in owners)
        return [rows for rows in found if rows]
