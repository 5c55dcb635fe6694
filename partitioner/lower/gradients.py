"""Lowering of gradients of parameters: their sums and norms, and the update.

A layer is updated block by block, unless its gradient must be whole: because the step wants it, or because
machines share its weights. Then each machine sums the gradients of its own rows, and the primary owner adds
the sums in the order of the pieces.
"""

from __future__ import annotations

from partita.layers.box import BoxSet
from partita.layers.graph import Grid
from partita.partitioner.ir.buffer import NORMS
from partita.partitioner.ir.program import Op, Operand
from partita.partitioner.lower.writer import Writer


class UpdateWriter:
    """Writes gradients and updates of a machine."""

    def __init__(self, writer: Writer) -> None:
        self.writer, self.owned, self.access, self.kind = writer, writer.owned, writer.access, writer.kind
        self._to_update: list[Grid] = []

    def is_awaited(self, grid: Grid) -> bool:
        """Whether another machine waits for this machine's gradient of a layer."""
        return self.writer.machine in self.owned.weight_receivers(grid.name)

    def write(self, grid: Grid) -> None:
        """Updates a layer, or computes its gradient for `finish`."""
        if not grid.learns:
            return
        by_inputs = self.owned.is_input_split(grid.name)
        given = (
            self.access.grad_preactivation(grid.name),
            *(self.access.inputs(grid.name) if by_inputs else ()),
        )
        if self.kind.gradients == "blocks" and not self.owned.weight_receivers(grid.name):
            self.writer.emit(Op.FUSED_UPDATE, self.access.parameters(grid.name), *given, accumulate=True)
            return
        gradient = self.access.gradient(grid.name)
        self.writer.emit(Op.GRADIENT, gradient, *given)
        if self.is_awaited(grid):
            self.writer.send_all(gradient.buffer)
            return
        for message in self.writer.incoming.get(gradient.buffer, ()):
            self.writer.receive_and_add(message, gradient)
        if self.kind.norms:
            self._to_update.append(grid)
        else:
            self._update(grid)

    def finish(self) -> None:
        """Exchanges the norms where they are wanted, and updates."""
        if not self._to_update:
            return
        place = self.owned.parameter_owners.index(self.writer.machine)
        gradients = (self.access.gradient(grid.name) for grid in reversed(self._to_update))
        self.writer.emit(Op.SQUARES, Operand(NORMS, BoxSet.of_rows((place, place + 1))), *gradients)
        self.writer.send_all(NORMS)
        self.writer.receive_all(NORMS)
        for grid in self._to_update:
            self._update(grid, self.access.norms)

    def _update(self, grid: Grid, *after: Operand) -> None:
        gradient = self.access.gradient(grid.name)
        self.writer.emit(Op.UPDATE, self.access.parameters(grid.name), gradient, *after, accumulate=True)
