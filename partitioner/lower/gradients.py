"""Lowering of gradients of parameters: their sums and norms, and the update.

A layer is updated block by block, unless its gradient must be whole: because the step wants it, or because
machines share its weights. Then each machine sums the gradients of its own rows, and the primary owner adds
the sums in the order of the pieces. A parameter that several layers use is updated by itself: each of them
adds its gradient to the machine's sum, and owners add the sums of other machines.
"""

from __future__ import annotations

from partita.layers.box import BoxSet
from partita.layers.graph import Grid
from partita.partitioner.ir.buffer import NORMS, BufferKind
from partita.partitioner.ir.program import Op, Operand
from partita.partitioner.lower.writer import Writer


class UpdateWriter:
    """Writes gradients and updates of a machine."""

    def __init__(self, writer: Writer) -> None:
        self.writer, self.owned, self.access, self.kind = writer, writer.owned, writer.access, writer.kind
        self._to_update: list[tuple[Operand, Operand]] = []
        self._uses: dict[str, int] = {}
        """The number of gradients that the machine's sum of a parameter has, of those that several layers
        use."""

    def is_awaited(self, grid: Grid) -> bool:
        """Returns whether another machine waits for this machine's gradient of a layer."""
        machine, owners = self.writer.machine, self.owned.placement.owners
        if grid.name in self.writer.graph.tied:
            names = self.owned.placement.learning(grid.name, machine)
            return any(machine not in owners(name) for name in names)
        return machine in self.owned.weight_receivers(grid.name)

    def write(self, grid: Grid) -> None:
        """Updates a layer, or computes its gradient for `finish`."""
        if not grid.learns:
            return
        by_inputs = self.owned.is_input_split(grid.name)
        given = (
            self.access.grad_preactivation(grid.name),
            *(self.access.inputs(grid.name) if by_inputs else ()),
        )
        if grid.name in self.writer.graph.tied:
            self._write_tied(grid, given)
            return
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
        self._update(self.access.parameters(grid.name), gradient)

    def _write_tied(self, grid: Grid, given: tuple[Operand, ...]) -> None:
        """Adds a layer's gradient to the sums of its parameters, and updates those that are complete."""
        names = self.owned.placement.learning(grid.name, self.writer.machine)
        begun = (self.access.placed(BufferKind.GRADIENT, name) for name in names if name in self._uses)
        self.writer.emit(Op.GRADIENT, self.access.gradient(grid.name), *given, *begun)
        for name in names:
            self._uses[name] = self._uses.get(name, 0) + 1
            if self._uses[name] == len(self.access.learners(name)):
                self._complete(name)

    def _complete(self, name: str) -> None:
        gradient = self.access.placed(BufferKind.GRADIENT, name)
        if self.writer.machine not in self.owned.placement.owners(name):
            self.writer.send_all(gradient.buffer)
            return
        for message in self.writer.incoming.get(gradient.buffer, ()):
            self.writer.receive_and_add(message, Operand(gradient.buffer, message.rows))
        self._update(self.access.placed(BufferKind.PARAMETERS, name), gradient)

    def finish(self) -> None:
        """Exchanges the norms where they are wanted, and updates."""
        if not self._to_update:
            return
        place = self.owned.parameter_owners.index(self.writer.machine)
        gradients = (gradient for _, gradient in reversed(self._to_update))
        self.writer.emit(Op.SQUARES, Operand(NORMS, BoxSet.of_rows((place, place + 1))), *gradients)
        self.writer.send_all(NORMS)
        self.writer.receive_all(NORMS)
        for parameters, gradient in self._to_update:
            self.writer.emit(Op.UPDATE, parameters, gradient, self.access.norms, accumulate=True)

    def _update(self, parameters: Operand, gradient: Operand) -> None:
        """Updates parameters, or notes them for `finish`."""
        if self.kind.norms:
            self._to_update.append((parameters, gradient))
        else:
            self.writer.emit(Op.UPDATE, parameters, gradient, accumulate=True)
