"""Layers as bars of pieces: widths, places and words.

A layer that is cut along two axes is a small map of its tiles, as high as they need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from partita.engine.view import svg, theme
from partita.engine.view.palette import Palette
from partita.layers.graph import Grid
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.assign.piece import Piece

BAR = 34.0
"""Height of a bar, in pixels."""
TILE, LEAST_TILE, WIDE_TILE = 16.0, 11.0, 48.0
"""Heights of a tile, as a mean and at least, and its width, in pixels."""
LEAST_BAR, MOST_BAR, CHIP = 340.0, 1000.0, 120.0
"""Widths of bars: where labels would need more than the most, those that do not fit are left out."""
ROWS_SIZE, NAME_SIZE, KIND_SIZE, TAG_SIZE = 11.5, 13.0, 11.0, 9.0
LONGEST = 26
"""Characters of a name or kind."""
PALE = 0.6
"""Share of white in a layer that is shown again."""


class Cell(NamedTuple):
    """A rectangle of the page."""

    left: float
    right: float
    top: float
    bottom: float

    @property
    def x(self) -> float:
        """Middle across the page."""
        return (self.left + self.right) / 2

    @property
    def y(self) -> float:
        """Middle down the page."""
        return (self.top + self.bottom) / 2

    @property
    def width(self) -> float:
        """Width of the box, in pixels."""
        return self.right - self.left


@dataclass(frozen=True)
class Box:
    """The bar of a layer: its edges, and the cell of each machine's piece."""

    grid: Grid
    pieces: Sequence[Piece]
    edges: Cell
    cells: dict[int, Cell]

    def drawn(self, palette: Palette) -> str:
        """Draws the bar with its pieces and labels."""
        if self.grid.is_placeholder:
            return self._given()
        fits = all(_label_width(p) - 8 <= c.width for p, c in self._pairs())
        with_rows = fits and not is_map(self.pieces)
        pieces = (self._piece(piece, cell, palette, with_rows=with_rows) for piece, cell in self._pairs())
        return svg.element("g", *self._labels(_labels(self.grid)[1]), *pieces)

    def drawn_again(self, palette: Palette, *, column: int) -> str:
        """Draws a layer of another column: pale, without words on its pieces."""
        pale = (
            _rectangle(cell, svg.mixed(palette.colour(machine), "#ffffff", PALE))
            for machine, cell in self.cells.items()
        )
        told = f"{self.grid.name}: in column {column + 1}, shown again"
        return svg.element("g", *self._labels(f"in column {column + 1}"), *pale, tooltip=told)

    def edge(self, side: str) -> float:
        """Returns the y of the `top` or of the `bottom`."""
        return self.edges.top if side == "top" else self.edges.bottom

    def _pairs(self) -> list[tuple[Piece, Cell]]:
        return [(piece, self.cells[piece.machine]) for piece in self.pieces]

    def _labels(self, below: str) -> list[str]:
        x, y = self.edges.left - 10, self.edges.y
        name = _labels(self.grid)[0]
        return [
            svg.text(x, y - 3, name, size=NAME_SIZE, full=self.grid.name, font_weight=600, text_anchor="end"),
            svg.text(x, y + 12, below, size=KIND_SIZE, fill=svg.SOFT, text_anchor="end"),
        ]

    def _piece(self, piece: Piece, cell: Cell, palette: Palette, *, with_rows: bool) -> str:
        """Draws a piece with its rows and machine, as far as there is room for the words."""
        m, grid = piece.machine, self.grid
        extent = f"rows {piece.rows} of {grid.n_rows}"
        if piece.inputs is not None:
            extent += f", from weights for inputs {piece.inputs[0]}:{piece.inputs[1]}"
        if is_map(self.pieces):
            start, stop = piece.columns or (0, grid.shape[1])
            extent += f", columns {start}:{stop} of {grid.shape[1]}"
        look: dict[str, Any] = {"fill": palette.ink(m), "text_anchor": "middle"}
        stripes = {"stroke": palette.colour(m), "stroke_width": 2.5, "paint_order": "stroke"}
        apart: dict[str, Any] = stripes if palette.striped(m) else {}
        words = []
        if with_rows:
            words.append(svg.text(cell.x, cell.y, _rows(piece), size=ROWS_SIZE, **look, **apart))
        tag = f"#{m}" if svg.text_width("#99", size=TAG_SIZE) <= cell.width else str(m)
        if svg.text_width(tag, size=TAG_SIZE) <= cell.width + 1:
            y, faint = (cell.y + 12, 0.85) if with_rows else (cell.y + 3, None)
            words.append(svg.text(cell.x, y, tag, size=TAG_SIZE, **look, fill_opacity=faint, **apart))
        told = f"{grid.name}: {extent} on {palette.names[m]}"
        return svg.element("g", _rectangle(cell, palette.fill(m)), *words, tooltip=told)

    def _given(self) -> str:
        edges, dash = self.edges, "none" if self.grid.layer.kind == "Input" else "3 3"
        size = {"x": edges.left, "y": edges.top + 4, "width": edges.width, "height": BAR - 8, "rx": 13}
        frame = svg.element("rect", **size, fill=theme.PAPER, stroke="#9aa5b1", stroke_dasharray=dash)
        told = f"{self.grid.layer.kind} {self.grid.name}: fed to every machine that needs it, never sent"
        label, y = _given_label(self.grid), edges.top + BAR / 2 + 4
        words = svg.text(edges.x, y, label, size=KIND_SIZE, text_anchor="middle")
        return svg.element("g", frame, words, tooltip=told)


def _rectangle(cell: Cell, fill: str) -> str:
    height, gap = cell.bottom - cell.top, min(1.0, cell.width / 12)
    down = gap if height < BAR else 0.0
    size = {"width": cell.width - 2 * gap, "height": height - 2 * down, "rx": min(4.0, cell.width / 6)}
    return svg.element("rect", x=cell.left + gap, y=cell.top + down, **size, fill=fill)


def is_map(pieces: Sequence[Piece]) -> bool:
    """Returns whether a layer is cut along two axes."""
    return len({piece.columns for piece in pieces}) > 1


def bar_widths(owned: Ownership) -> dict[str, float]:
    """Returns the width of each layer; bars of layers cut by rows are as wide as the widest labels need."""
    rows = [owned.of(g.name) for g in owned.graph.computed if not is_map(owned.of(g.name))]
    widest = max((sum(map(_label_width, pieces)) for pieces in rows), default=0.0)
    found = {}
    for grid in owned.graph.grids:
        pieces = owned.of(grid.name)
        if grid.is_placeholder:
            found[grid.name] = max(CHIP, svg.text_width(_given_label(grid), size=KIND_SIZE) + 24)
        elif is_map(pieces):
            across = len({piece.columns for piece in pieces})
            found[grid.name] = min(max(LEAST_BAR / 2, WIDE_TILE * across), MOST_BAR)
        else:
            whole = len(pieces) == grid.n_rows == 1
            found[grid.name] = CHIP if whole else min(max(LEAST_BAR, widest), MOST_BAR)
    return found


def height_of(pieces: Sequence[Piece]) -> float:
    """Returns the height of a layer's bar or map."""
    if not is_map(pieces):
        return BAR
    least = min(piece.stop - piece.start for piece in pieces)
    total = max(piece.stop for piece in pieces)
    return max(BAR, TILE * len({piece.box[0] for piece in pieces}), LEAST_TILE * total / least)


def label_width(grid: Grid) -> float:
    """Returns the width of the text to the left of the bar."""
    if grid.is_placeholder:
        return 0.0
    name, kind = _labels(grid)
    return max(svg.text_width(name, size=NAME_SIZE), svg.text_width(kind, size=KIND_SIZE)) + 14


def _labels(grid: Grid) -> tuple[str, str]:
    kind = svg.shortened(grid.layer.kind, most=LONGEST)
    return svg.shortened(grid.name, most=LONGEST), f"{kind} {svg.shape_text(grid.shape)}"


def _given_label(grid: Grid) -> str:
    return f"{svg.shortened(grid.name, most=LONGEST)} {svg.shape_text(grid.shape)}"


def place(grid: Grid, pieces: Sequence[Piece], *, centre: float, top: float, width: float) -> Box:
    """Places the bar around a centre."""
    left, bottom = centre - width / 2, top + height_of(pieces)
    edges = Cell(left, left + width, top, bottom)
    return Box(grid, pieces, edges, (_tiles if is_map(pieces) else _side_by_side)(grid, pieces, edges))


def _side_by_side(_: Grid, pieces: Sequence[Piece], edges: Cell) -> dict[int, Cell]:
    """Makes pieces as wide as their labels, if all have room, and divides the rest by their rows."""
    least, rows = [_label_width(piece) for piece in pieces], [piece.stop - piece.start for piece in pieces]
    if sum(least) > edges.width:
        least = [0.0] * len(pieces)
    rest = edges.width - sum(least)
    widths = (room + rest * n / sum(rows) for room, n in zip(least, rows, strict=True))
    sides = pairwise(accumulate(widths, initial=edges.left))
    return {
        piece.machine: Cell(*both, edges.top, edges.bottom) for piece, both in zip(pieces, sides, strict=True)
    }


def _tiles(grid: Grid, pieces: Sequence[Piece], edges: Cell) -> dict[int, Cell]:
    down, across = (edges.bottom - edges.top) / grid.shape[0], edges.width / grid.shape[1]
    cells = {}
    for piece in pieces:
        sides = (edges.left + n * across for n in piece.columns or (0, grid.shape[1]))
        cells[piece.machine] = Cell(*sides, *(edges.top + n * down for n in (piece.start, piece.stop)))
    return cells


def _rows(piece: Piece) -> str:
    """Writes rows as the table does: `0:8`, or `0:8/0:4` of a piece that is cut by its inputs."""
    inputs = "" if piece.inputs is None else f"/{piece.inputs[0]}:{piece.inputs[1]}"
    return str(piece.rows) + inputs


def _label_width(piece: Piece) -> float:
    return svg.text_width(_rows(piece), size=ROWS_SIZE) + 14
