"""Lowering of the backward pass: gradients are computed, added up and sent, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partita.layers.box import BoxSet
from partita.layers.graph import Grid
from partita.partitioner.assign.coverage import in_bands
from partita.partitioner.ir.buffer import Buffer, BufferKind, Edge, activations
from partita.partitioner.ir.program import Op, Operand
from partita.partitioner.lower.messages import GradientSum
from partita.partitioner.lower.partial_sums import exchange
from partita.partitioner.lower.windows import own_tile
from partita.partitioner.lower.writer import Writer


class BackwardPass:
    """Writes the backward pass of a machine."""

    def __init__(self, writer: Writer, sums: Mapping[Edge, Sequence[GradientSum]]) -> None:
        """Takes the sums of gradients that the machine computes along each edge."""
        self.writer, self.owned, self.sums = writer, writer.owned, sums

    def write(self, grid: Grid) -> None:
        """Gathers the gradient of the machine's rows of a layer, and computes those of its inputs."""
        own = self.writer.own(grid.name)
        grad = self._gather(grid, own)
        if grad is not None and (grid.layer.activation != "linear" or self._is_apart(grad, own)):
            self.writer.emit(
                Op.GRAD_PREACTIVATION, grad, Operand(activations(grid.name), own), accumulate=True
            )
        if grad is not None and self.owned.is_input_split(grid.name):
            grad = exchange(self.writer, grid, grad)
        if self.owned.returns_summary(grid.name):
            own_grad = self.writer.access.own(grid.name) if grad is None else grad
            inputs = self.writer.access.inputs(grid.name)
            self.writer.exchange_summary(Buffer(BufferKind.GRAD_SUMMARY, grid.name), own_grad, *inputs)
        for k, source in enumerate(grid.sources):
            if source in self.writer.graph.needs_gradient:
                self._sum(Edge(source, grid.name, k), grad)

    def _gather(self, grid: Grid, own: BoxSet) -> Operand | None:
        """Brings the gradient of the machine's rows together; returns its place, None for a loss."""
        edges = self.owned.grad_edges(grid.name)
        for edge in edges:
            arriving = self.writer.incoming.get(edge.buffer, [])
            if self.owned.crosses_tiles(edge):
                begun = own & BoxSet.union(*self._bands(edge))
            elif self.owned.sums_by_machine(edge):
                sums = (part for part in self.sums.get(edge, ()) if part.following is None)
                begun = BoxSet.union(*(part.rows for part in sums))
            else:
                for message in arriving:
                    self.writer.receive(message)
                continue
            for message in arriving:  # added in the order of the pieces; the first are taken as they are
                self.writer.receive_into_sum(message, begun)
                begun |= message.rows
        if not edges:
            return None
        self._join(edges)
        return Operand(edges[0].buffer, own)

    def _is_apart(self, grad: Operand, own: BoxSet) -> bool:
        """Returns whether kernels take the gradient of the machine's own tile from an array of its own."""
        edge, machine = self.writer.access.edge(grad.buffer), self.writer.machine
        return own_tile(self.owned, grad.buffer, machine, self.owned.error_window(edge, machine)) is not None

    def _join(self, edges: tuple[Edge, ...]) -> None:
        """Adds the gradients of all edges into the buffer of the first.

        A row without receivers along the first edge still holds the sum of the step before (at first zero),
        so the first edge with a receiver replaces it.
        """
        if len(edges) == 1:
            return
        begun = self.owned.consumed_rows(edges[0], self.writer.machine)
        for edge in edges[1:]:
            consumed = self.owned.consumed_rows(edge, self.writer.machine)
            added, copied = consumed & begun, consumed - begun
            for rows, accumulate in ((added, True), (copied, False)):
                if rows:
                    target = Operand(edges[0].buffer, rows)
                    self.writer.emit(Op.ADD, target, Operand(edge.buffer, rows), accumulate=accumulate)
            begun = BoxSet.union(begun, consumed)

    def _sum(self, edge: Edge, grad: Operand | None) -> None:
        """Computes the gradient of an input, first for machines that wait for it, and sends it."""
        if self.owned.crosses_tiles(edge):
            self._sum_across(edge, grad)
            return
        sums = sorted(
            self.sums.get(edge, ()), key=lambda part: (part.previous is not None, part.following is None)
        )
        last = {part.following: part for part in sums}
        for part in sums:
            self._add_part(part, grad)
            if part.following is not None and last[part.following] is part:
                outgoing = self.writer.outgoing[edge.buffer]
                self.writer.send(next(m for m in outgoing if m.destination == part.following))

    def _add_part(self, part: GradientSum, grad: Operand | None) -> None:
        for message in self.writer.incoming.get(part.edge.buffer, ()) if part.previous is not None else ():
            if part.previous == message.source:
                self.writer.receive(message)
        own = self.writer.access.own(part.edge.consumer)
        self.writer.emit(
            Op.GRAD_INPUT,
            Operand(part.edge.buffer, part.rows),
            own if grad is None else grad,
            accumulate=part.previous is not None,
        )

    def _sum_across(self, edge: Edge, grad: Operand | None) -> None:
        """Computes all gradients that the machine's receivers return, and sends each owner its share."""
        source = self.writer.access.own(edge.consumer) if grad is None else grad
        outgoing = self.writer.outgoing.get(edge.buffer, ())
        mine = [part.rows for part in self.sums.get(edge, ()) if part.following is None]
        for band in sorted(self._bands(edge), key=lambda band: any(own.overlaps(band) for own in mine)):
            self.writer.emit(Op.GRAD_INPUT, Operand(edge.buffer, band), source)
            for message in outgoing:
                if message.rows.overlaps(band):
                    self.writer.send(message)

    def _bands(self, edge: Edge) -> list[BoxSet]:
        """Rows of an input whose gradient is computed at once: whole rows, as far as the kernel has them.

        Patches take all; a fully connected layer goes by the owners' rows of tiles.
        """
        machine, consumer = self.writer.machine, self.owned.graph[edge.consumer]
        columns = self.owned.kernel_columns(edge, machine)
        needed = self.owned.grad_rows(edge, machine).across(columns)
        if not needed or consumer.connectivity.ordered_gradients:
            return [needed] if needed else []
        return in_bands(needed, self.owned.of(edge.layer), columns)
