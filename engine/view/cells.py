"""A layer's grid as cells, one for each node: their places, and which of an input's cells a node uses.

Axis 0 runs down the page, axis 1 across it; the rest of the grid (the channels of a picture) lies side by
side as sheets. A place is `(row, column, sheet)`; in the padding, rows and columns lie outside the grid.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from partita.engine.view import svg
from partita.layers.box import NOTHING, Box, BoxSet, Shape, Span
from partita.layers.connectivity import PADDING, Connectivity, Patch
from partita.layers.graph import Grid

Place: TypeAlias = tuple[int, int, int]
"""Row, column and sheet."""

CELL, STEP, SHEET_GAP = 12.0, 14.0, 16.0
"""Side of a cell, from one to the next, and between two sheets, in pixels."""
WORDS, LONGEST = 11.0, 40
"""Size of a caption, and characters of a name in it."""


@dataclass(frozen=True)
class Cells:
    """A machine's rows of one grid, its own and those that it receives, from a left upper corner on.

    Padding is `vertical` above and below, and `horizontal` on both sides of each sheet. A plan for one
    machine has no rows in its caption: the cells stand `alone`.
    """

    grid: Grid
    own: BoxSet
    received: BoxSet = NOTHING
    vertical: Span = (0, 0)
    horizontal: Span = (0, 0)
    left: float = 0.0
    top: float = 0.0
    alone: bool = False

    @cached_property
    def shown(self) -> BoxSet:
        """Nodes that are drawn; every row between the first and the last has its place."""
        return self.own | self.received

    @cached_property
    def rows(self) -> Span:
        """First row, and the row behind the last."""
        return self.shown.hull[0]

    @cached_property
    def columns(self) -> int:
        """Columns of a sheet."""
        return _sheets(self.grid.shape)[1]

    @cached_property
    def n_sheets(self) -> int:
        """Number of sheets side by side."""
        return _sheets(self.grid.shape)[2]

    @property
    def width(self) -> float:
        """Width of all sheets, in pixels."""
        return self.n_sheets * (self._sheet_width + SHEET_GAP) - SHEET_GAP

    @cached_property
    def _sheet_width(self) -> float:
        return (sum(self.horizontal) + self.columns) * STEP

    @property
    def height(self) -> float:
        """Height with padding, in pixels."""
        return (sum(self.vertical) + self.rows[1] - self.rows[0]) * STEP

    def corner(self, place: Place) -> tuple[float, float]:
        """Returns the left upper corner of a cell."""
        row, column, sheet = place
        x = self.left + sheet * (self._sheet_width + SHEET_GAP) + (self.horizontal[0] + column) * STEP
        return x, self.top + (self.vertical[0] + row - self.rows[0]) * STEP

    def middle(self, box: Box) -> float:
        """Returns the y of the middle of the box's rows."""
        top, bottom = (self.corner((row, 0, 0))[1] for row in box[0])
        return (top + bottom) / 2 - 1

    def filled(self, nodes: BoxSet, **look: object) -> str:
        """Draws the cells of some nodes."""
        places = [
            (row, column, sheet)
            for box in nodes
            for sheet in range(self.n_sheets)
            for row in range(*box[0])
            for column in range(*box.columns or (0, self.columns))
        ]
        return svg.element("path", d=squares(map(self.corner, places)), **look) if places else ""

    def padding(self) -> str:
        """Draws the cells around the nodes."""
        rows = range(self.rows[0] - self.vertical[0], self.rows[1] + self.vertical[1])
        columns = range(-self.horizontal[0], self.columns + self.horizontal[1])
        every = itertools.product(range(self.n_sheets), rows, columns)
        places = [(row, column, n) for n, row, column in every if not self.holds((row, column, n))]
        look = {"fill": "none", "stroke": "#c3ccd4", "stroke_dasharray": "2 2"}
        return svg.element("path", d=squares(map(self.corner, places)), **look) if places else ""

    def holds(self, place: Place) -> bool:
        """Returns whether a place is that of a node between the first and the last row."""
        return self.rows[0] <= place[0] < self.rows[1] and 0 <= place[1] < self.columns

    def shows(self, place: Place) -> bool:
        """Returns whether a place is drawn: a node, or padding beside the rows."""
        if self.holds(place):
            boxes = (zip(place, box, strict=False) for box in self.shown)
            return any(all(start <= n < stop for n, (start, stop) in axes) for axes in boxes)
        return self.rows[0] - self.vertical[0] <= place[0] < self.rows[1] + self.vertical[1]

    def _words(self, most: int) -> str:
        held = f" {svg.shape_text(self.grid.shape)}" if self.alone else f", rows {self.shown}"
        return svg.shortened(self.grid.name, most=most) + held

    def caption(self) -> str:
        """Writes the name, and the shape or the rows that the machine holds, above the cells."""
        full = self._words(len(self.grid.name))
        return svg.text(self.left, self.top - 7, self._words(LONGEST), size=WORDS, full=full)

    @property
    def right(self) -> float:
        """The place where the cells and their caption end."""
        return self.left + max(self.width, svg.text_width(self._words(LONGEST), size=WORDS) * 0.9)


def place_of(node: int, shape: Shape) -> Place:
    """Returns the place of a node by its flat position in a grid."""
    row, column, sheet = map(int, np.unravel_index(node, _sheets(shape)))
    return row, column, sheet


def _sheets(shape: Shape) -> Place:
    """Returns the rows and columns of a sheet, and how many sheets a grid has."""
    return shape[0], shape[1] if len(shape) > 1 else 1, math.prod(shape[2:])


def padding_around(wiring: Connectivity, source: Shape) -> list[Span]:
    """Returns the padding of patches before and behind each axis; none for other wirings and for channels."""
    around = [(0, 0)] * len(source)
    if isinstance(wiring, Patch):
        for n, axis in enumerate(wiring.axes(source)):
            reach = (axis.out - 1) * axis.stride + (axis.size - 1) * axis.dilation + 1
            around[n] = (axis.before, max(reach - axis.before - source[n], 0))
    return around


def senders(grid: Grid, node: int, number: int, source: Shape) -> list[Place]:
    """Returns the cells of an input that a node of the grid uses, and those of its patch in the padding."""
    row, rest = divmod(node, grid.nodes_per_row)
    wiring = grid.wirings[number]
    offsets, indices = wiring.edges((row, row + 1), grid.shape, source)
    used = indices[offsets[rest] : offsets[rest + 1]]
    found = [place_of(index, source) for index in used if index != PADDING]
    if not isinstance(wiring, Patch):
        return found
    position, extents = np.unravel_index(node, grid.shape), [*source, 1]
    rows, *columns = (
        [int(position[n]) * axis.stride - axis.before + k * axis.dilation for k in range(axis.size)]
        for n, axis in enumerate(wiring.axes(source)[:2])
    )
    patch = itertools.product(rows, columns[0] if columns else sorted({place[1] for place in found}))
    outside = [(r, c) for r, c in patch if not (0 <= r < extents[0] and 0 <= c < extents[1])]
    return found + [(*cell, sheet) for sheet in sorted({place[2] for place in found}) for cell in outside]


def squares(corners: Iterable[tuple[float, float]], *, width: float = CELL, height: float = CELL) -> str:
    """Writes cells, or parts of them, as one SVG path."""
    around = svg.path("h", width, "v", height, "h", -width, "z")
    return "".join(f"M{svg.number(x)} {svg.number(y)}{around}" for x, y in corners)
