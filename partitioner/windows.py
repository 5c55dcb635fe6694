"""The windows of a program: which rows of each buffer a machine holds, and how many bytes they take.

Plain arithmetic. The engine allocates exactly these arrays, and a plan's memory is their sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from partita.layers.graph import Grid
from partita.layers.layer import Given
from partita.layers.region import Shape
from partita.layers.rows import bounds
from partita.partitioner.ownership import Ownership
from partita.partitioner.program import Operand, Program

ITEM_BYTES = {"float32": 4, "float64": 8, "int64": 8}
"""Bytes of a number, by NumPy's name for its kind."""


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """An array to allocate: rows of a buffer for every example of a batch.

    Args:
        rows: `[start, stop)` of the layer.
        shape: of the array, `[rows, other node axes ..., example]`.
        dtype: NumPy's name of it; labels are "int64", all else has the plan's precision.
    """

    rows: tuple[int, int]
    shape: Shape
    dtype: str

    @property
    def n_bytes(self) -> int:
        """Of the array."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def windows_of(owned: Ownership, program: Program, *, batch: int, precision: str) -> dict[str, WindowPlan]:
    """What a program's machine holds of each buffer, by the names that its instructions use.

    Parameters and gradients are left out: they lie in vectors, not in windows.
    """
    found: dict[str, WindowPlan] = {}
    for instruction in program.instructions:
        for operand in (instruction.target, *instruction.sources):
            name = operand.buffer
            if name not in found and not name.endswith((".parameters", ".gradient")):
                grid, rows = owned.graph[name.partition("<")[0]], _rows(owned, operand, program.machine)
                shape = (rows[1] - rows[0], *grid.shape[1:], batch)
                found[name] = WindowPlan(rows, shape, _dtype(grid, precision))
    return found


def _rows(owned: Ownership, operand: Operand, machine: int) -> tuple[int, int]:
    layer, returned, _ = operand.buffer.partition("<")
    if "@" in operand.buffer:  # received, added and done with: nobody needs other rows of it
        return bounds(operand.rows)
    if not returned:
        return owned.state_window(layer, machine)
    edge = next(edge for edge in owned.edges(layer) if edge.name == operand.buffer)
    return owned.error_window(edge, machine)


def _dtype(grid: Grid, precision: str) -> str:
    labels = isinstance(grid.layer, Given) and grid.layer.classes is not None
    return "int64" if labels else precision
