"""Every array of a part, allocated once for each program: a step allocates nothing.

States, errors and partial errors are windows of rows, `[rows, other node axes ..., example]`. Parameters and
gradients are flat vectors, one for the machine, of which each layer's arrays are views.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from partita.engine.parameters.layout import Layout, Slot
from partita.layers.graph import Grid
from partita.layers.layer import Given
from partita.layers.rows import Rows, bounds
from partita.partitioner.plan import Plan
from partita.partitioner.program import Op, Operand, Program

Array: TypeAlias = npt.NDArray[Any]


def layout_of(plan: Plan, *, shards: int) -> Layout:
    """Where every parameter lies: on the machines in the order of the layers, and on the shards."""
    machines = tuple(
        tuple(
            Slot(parameter.name, *parameter.span(rows))
            for grid in plan.graph.computed
            if (rows := plan.ownership.rows(grid.name, machine)) is not None
            for parameter in grid.parameters
        )
        for machine in range(len(plan.cluster))
    )
    return Layout(machines, {name: p.shape for name, p in plan.graph.parameters.items()}, shards)


class Window:
    """Rows `[start, stop)` of a buffer, and the array that holds them."""

    def __init__(self, start: int, array: Array) -> None:
        self.start = start
        self.array = array

    @property
    def rows(self) -> tuple[int, int]:
        """`(start, stop)`."""
        return self.start, self.start + len(self.array)

    def of(self, rows: Rows) -> list[Array]:
        """The runs of these rows, as contiguous views."""
        return [self.array[a - self.start : b - self.start] for a, b in rows]


class Vectors:
    """A machine's parameters and their gradient: flat vectors, and each layer's arrays as views of them."""

    def __init__(self, plan: Plan, machine: int) -> None:
        self.slots = layout_of(plan, shards=1).machines[machine]
        size = sum(slot.size for slot in self.slots)
        dtype = np.dtype(plan.precision)
        self.parameters = np.zeros(size, dtype)
        self.gradient = np.zeros(size, dtype)
        self._spans: dict[str, tuple[int, int]] = {}
        self._shapes: dict[str, list[tuple[int, int, tuple[int, ...]]]] = {}
        position = 0
        for grid in plan.graph.computed:
            rows = plan.ownership.rows(grid.name, machine)
            begin = position
            for parameter in grid.parameters if rows is not None else ():
                assert rows is not None
                start, stop = parameter.span(rows)
                ragged = parameter.row_starts is not None
                shape = (stop - start,) if ragged else (rows[1] - rows[0], *parameter.shape[1:])
                self._shapes.setdefault(grid.name, []).append((position, position + stop - start, shape))
                position += stop - start
            self._spans[grid.name] = (begin, position)

    def span(self, layer: str) -> slice:
        """The layer's range in the vectors."""
        return slice(*self._spans[layer])

    def views(self, layer: str, vector: Array) -> list[Array]:
        """The layer's pieces of its parameters in a vector, in their shapes."""
        return [vector[start:stop].reshape(shape) for start, stop, shape in self._shapes.get(layer, [])]


class Buffers:
    """The windows of a program, by the names that its instructions use."""

    def __init__(self, plan: Plan, machine: int, program: Program) -> None:
        self.plan, self.machine = plan, machine
        self.windows: dict[str, Window] = {}
        for instruction in program.instructions:
            for operand in (instruction.target, *instruction.sources):
                if operand.buffer not in self.windows and not operand.buffer.endswith(
                    (".parameters", ".gradient")
                ):
                    self.windows[operand.buffer] = self._allocate(operand, instruction.op)

    def _allocate(self, operand: Operand, op: Op) -> Window:
        layer, returned, partial = (
            operand.buffer.partition("<")[0],
            "<" in operand.buffer,
            "@" in operand.buffer,
        )
        grid, owned = self.plan.graph[layer], self.plan.ownership
        if partial:
            rows = bounds(operand.rows)
        elif returned:
            edge = next(edge for edge in owned.edges(layer) if edge.name == operand.buffer)
            rows = owned.error_window(edge, self.machine)
        else:
            rows = owned.state_window(layer, self.machine)
        return Window(
            rows[0], np.zeros((rows[1] - rows[0], *grid.shape[1:], self.plan.batch), self._dtype(grid))
        )

    def _dtype(self, grid: Grid) -> np.dtype[Any]:
        labels = isinstance(grid.layer, Given) and grid.layer.classes is not None
        return np.dtype(np.int64 if labels else self.plan.precision)

    def __getitem__(self, buffer: str) -> Window:
        return self.windows[buffer]

    @property
    def n_bytes(self) -> int:
        """Of all windows."""
        return sum(window.array.nbytes for window in self.windows.values())
