"""A layer's grid as cells, one for each node: where they lie, and which of an input's cells a node hears.

Axis 0 runs down the page, axis 1 across it; the rest of the grid (the channels of a picture) lies side by
side as sheets. A place is `(row, column, sheet)`; in the padding, rows and columns lie outside the grid.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from partita.engine.view import svg
from partita.layers.box import Box, Shape
from partita.layers.connectivity import PADDING, Connectivity, Patch
from partita.layers.graph import Grid

Place: TypeAlias = tuple[int, int, int]
"""Row, column and sheet."""
Around: TypeAlias = tuple[tuple[int, int], ...]
"""Nodes of padding before and behind each axis of a grid."""

CELL, STEP, SHEET_GAP = 12.0, 14.0, 16.0
"""Side of a cell, from one to the next, and between two sheets, in pixels."""


@dataclass(frozen=True)
class Sheets:
    """The rows `[start, stop)` of a grid as cells from a left upper corner on.

    Args:
        shape: of the whole grid.
        rows: which are shown.
        vertical: rows of padding above and below.
        horizontal: columns of padding to the left and to the right of each sheet.
        left, top: the corner, in pixels.
    """

    shape: Shape
    rows: tuple[int, int]
    vertical: tuple[int, int]
    horizontal: tuple[int, int]
    left: float
    top: float

    @property
    def columns(self) -> int:
        """Of a sheet."""
        return self.shape[1] if len(self.shape) > 1 else 1

    @property
    def n_sheets(self) -> int:
        """How many lie side by side."""
        return math.prod(self.shape[2:])

    @property
    def sheet_width(self) -> float:
        """Of one, in pixels."""
        return (sum(self.horizontal) + self.columns) * STEP

    @property
    def width(self) -> float:
        """Of all, in pixels."""
        return self.n_sheets * (self.sheet_width + SHEET_GAP) - SHEET_GAP

    @property
    def height(self) -> float:
        """In pixels."""
        return (sum(self.vertical) + self.rows[1] - self.rows[0]) * STEP

    def corner(self, place: Place) -> tuple[float, float]:
        """The left upper corner of a cell."""
        row, column, sheet = place
        x = self.left + sheet * (self.sheet_width + SHEET_GAP) + (self.horizontal[0] + column) * STEP
        return x, self.top + (self.vertical[0] + row - self.rows[0]) * STEP

    def places(self, box: Box) -> list[Place]:
        """Positions of all nodes of a box."""
        rows, columns = range(*box[0]), range(*box.columns or (self.columns,))
        return [(row, column, n) for n in range(self.n_sheets) for row in rows for column in columns]

    def padding(self) -> list[Place]:
        """Of all cells around the nodes."""
        rows = range(self.rows[0] - self.vertical[0], self.rows[1] + self.vertical[1])
        columns = range(-self.horizontal[0], self.columns + self.horizontal[1])
        every = [(row, column, n) for n in range(self.n_sheets) for row in rows for column in columns]
        return [place for place in every if not self.holds(place)]

    def holds(self, place: Place) -> bool:
        """Whether a place is that of a node of these rows."""
        return self.rows[0] <= place[0] < self.rows[1] and 0 <= place[1] < self.columns

    def shows(self, place: Place) -> bool:
        """Whether a place lies in these rows or their padding."""
        return self.rows[0] - self.vertical[0] <= place[0] < self.rows[1] + self.vertical[1]


def is_in(place: Place, box: Box) -> bool:
    """Whether a box holds a place."""
    return all(start <= n < stop for n, (start, stop) in zip(place, box, strict=False))


def place_of(node: int, shape: Shape) -> Place:
    """Of a node, by its flat position in a grid of this shape."""
    return _place(np.unravel_index(node, shape), shape)


def _place(position: Sequence[Any], shape: Shape) -> Place:
    row, column, *rest = (*map(int, position), 0) if len(shape) == 1 else map(int, position)
    sheet = 0
    for n, extent in zip(rest, shape[2:], strict=True):
        sheet = sheet * extent + n
    return row, column, sheet


def padding_around(wiring: Connectivity, source: Shape) -> Around:
    """What patches need around an input; nothing for other wirings, and for channels."""
    around = [(0, 0)] * len(source)
    if isinstance(wiring, Patch):
        for n, axis in enumerate(wiring.axes(source)):
            reach = (axis.out - 1) * axis.stride + (axis.size - 1) * axis.dilation + 1
            around[n] = (axis.before, max(reach - axis.before - source[n], 0))
    return tuple(around)


def senders(grid: Grid, node: int, source: Shape) -> list[Place]:
    """The cells of an input that a node listens to, and those of its patch that lie in the padding.

    Args:
        grid: the layer.
        node: its flat position in the layer.
        source: the grid of the input.
    """
    row, rest = divmod(node, grid.nodes_per_row)
    wiring = grid.layer.connectivity
    offsets, indices = wiring.edges((row, row + 1), grid.shape, source)
    heard = indices[offsets[rest] : offsets[rest + 1]]
    found = [place_of(int(index), source) for index in heard if index != PADDING]
    if not isinstance(wiring, Patch):
        return found
    place, extents = np.unravel_index(node, grid.shape), [*source, 1]
    rows, *columns = (
        [int(place[n]) * axis.stride - axis.before + k * axis.dilation for k in range(axis.size)]
        for n, axis in enumerate(wiring.axes(source)[:2])
    )
    patch = itertools.product(rows, columns[0] if columns else sorted({place[1] for place in found}))
    outside = [(r, c) for r, c in patch if not (0 <= r < extents[0] and 0 <= c < extents[1])]
    return found + [(*cell, sheet) for sheet in sorted({place[2] for place in found}) for cell in outside]


def squares(corners: Iterable[tuple[float, float]], *, width: float = CELL, height: float = CELL) -> str:
    """Cells, or parts of them, as one SVG path."""
    side, size, back = svg.number(width), svg.number(height), svg.number(-width)
    return "".join(f"M{svg.number(x)} {svg.number(y)}h{side}v{size}h{back}z" for x, y in corners)
