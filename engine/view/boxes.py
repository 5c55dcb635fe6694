"""Layers as bars: how wide, where, and where each machine's piece of them lies.

A layer that is cut along two axes is a small map of its tiles, as high as they need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partita.engine.view import svg
from partita.engine.view.look import Look
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


@dataclass(frozen=True)
class Cell:
    """The rectangle of a machine's piece: left and right, top and bottom."""

    left: float
    right: float
    top: float
    bottom: float

    @property
    def width(self) -> float:
        """In pixels."""
        return self.right - self.left


@dataclass(frozen=True)
class Box:
    """A layer's bar: its edges, the cell of each machine's piece, and whether it is a map of tiles."""

    grid: Grid
    left: float
    right: float
    top: float
    bottom: float
    cells: dict[int, Cell]
    is_map: bool = False

    def span(self, machine: int) -> tuple[float, float]:
        """The left and right edge of a machine's piece."""
        return self.cells[machine].left, self.cells[machine].right


def tile(piece: Piece) -> tuple[int, int] | None:
    """The columns of a piece that is a tile."""
    columns: tuple[int, int] | None = getattr(piece, "columns", None)
    return columns


def is_map(pieces: Sequence[Piece]) -> bool:
    """Whether a layer is cut along two axes."""
    return len({tile(piece) for piece in pieces}) > 1


def bar_widths(owned: Ownership) -> dict[str, float]:
    """For each layer: where there are rows to cut, all bars are as wide as the widest labels need."""
    rows = [owned.of(g.name) for g in owned.graph.computed if not is_map(owned.of(g.name))]
    widest = max((sum(map(_label_width, pieces)) for pieces in rows), default=0.0)
    found = {
        g.name: CHIP if len(owned.of(g.name)) == g.n_rows == 1 else min(max(LEAST_BAR, widest), MOST_BAR)
        for g in owned.graph.computed
    }
    for grid in owned.graph.grids:
        if is_map(owned.of(grid.name)):
            across = len({tile(piece) for piece in owned.of(grid.name)})
            found[grid.name] = min(max(LEAST_BAR / 2, WIDE_TILE * across), MOST_BAR)
        if grid.is_placeholder:
            found[grid.name] = max(CHIP, svg.text_width(given_label(grid), size=KIND_SIZE) + 24)
    return found


def height_of(pieces: Sequence[Piece]) -> float:
    """Of a layer's bar or map."""
    if not is_map(pieces):
        return BAR
    rows = {piece.stop - piece.start for piece in pieces}
    total = max(piece.stop for piece in pieces)
    return max(BAR, TILE * len({piece.box[0] for piece in pieces}), LEAST_TILE * total / min(rows))


def label_width(grid: Grid) -> float:
    """Of the text to the left of the bar."""
    if grid.is_placeholder:
        return 0.0
    name, kind = labels(grid)
    widths = svg.text_width(name, size=NAME_SIZE), svg.text_width(kind, size=KIND_SIZE)
    return max(widths) + 14


def labels(grid: Grid) -> tuple[str, str]:
    """The name, and what kind of layer of which shape."""
    kind = svg.shortened(grid.layer.kind, most=LONGEST)
    return svg.shortened(grid.name, most=LONGEST), f"{kind} {shape_text(grid)}"


def given_label(grid: Grid) -> str:
    """What is given stands in its bar: name and shape."""
    return f"{svg.shortened(grid.name, most=LONGEST)} {shape_text(grid)}"


def shape_text(grid: Grid) -> str:
    """`28×28×1`."""
    return "×".join(map(str, grid.shape))


def place(grid: Grid, pieces: Sequence[Piece], *, centre: float, top: float, width: float) -> Box:
    """The bar around a centre."""
    left, bottom = centre - width / 2, top + height_of(pieces)
    edges = left, left + width, top, bottom
    if is_map(pieces):
        return Box(grid, *edges, cells=_tiles(grid, pieces, edges), is_map=True)
    return Box(grid, *edges, cells=_side_by_side(pieces, edges))


def _side_by_side(pieces: Sequence[Piece], edges: tuple[float, float, float, float]) -> dict[int, Cell]:
    """Pieces as wide as their labels, which share the rest by their rows; by their rows alone, if the labels
    have no room.
    """
    x, right, top, bottom = edges
    least = list(map(_label_width, pieces))
    if sum(least) > right - x:
        least = [0.0] * len(pieces)
    rest, total = right - x - sum(least), sum(piece.stop - piece.start for piece in pieces)
    cells = {}
    for piece, room in zip(pieces, least, strict=True):
        share = room + rest * (piece.stop - piece.start) / total
        cells[piece.machine] = Cell(x, x + share, top, bottom)
        x += share
    return cells


def _tiles(grid: Grid, pieces: Sequence[Piece], edges: tuple[float, float, float, float]) -> dict[int, Cell]:
    left, right, top, bottom = edges
    down, across = (bottom - top) / grid.shape[0], (right - left) / grid.shape[1]
    cells = {}
    for piece in pieces:
        start, stop = tile(piece) or (0, grid.shape[1])
        cells[piece.machine] = Cell(
            left + start * across, left + stop * across, top + piece.start * down, top + piece.stop * down
        )
    return cells


def drawn(box: Box, pieces: Sequence[Piece], look: Look) -> str:
    """The bar with its pieces and labels."""
    if box.grid.is_placeholder:
        return _given(box)
    kind = labels(box.grid)[1]
    fits = [_label_width(piece) - 8 <= box.cells[piece.machine].width for piece in pieces]
    blocks = [_piece(box, piece, look, with_rows=all(fits) and not box.is_map) for piece in pieces]
    return svg.element("g", *_words(box, kind), *blocks)


def drawn_again(box: Box, pieces: Sequence[Piece], look: Look, *, column: int) -> str:
    """A layer of another column: pale, without words on its pieces."""
    blocks = []
    for piece in pieces:
        fill = svg.mixed(look.palette.colour(piece.machine), "#ffffff", PALE)
        blocks.append(_rectangle(box.cells[piece.machine], fill))
    told = svg.title(f"{box.grid.name}: in column {column + 1}, shown again")
    return svg.element("g", told, *_words(box, f"in column {column + 1}"), *blocks)


def _words(box: Box, below: str) -> list[str]:
    x, middle = box.left - 10, (box.top + box.bottom) / 2
    name = labels(box.grid)[0]
    return [
        svg.text(x, middle - 3, name, size=NAME_SIZE, font_weight=600, text_anchor="end"),
        svg.text(x, middle + 12, below, size=KIND_SIZE, fill=svg.SOFT, text_anchor="end"),
    ]


def _rectangle(cell: Cell, fill: str) -> str:
    gap = min(1.0, (cell.right - cell.left) / 12)
    return svg.element(
        "rect",
        x=cell.left + gap,
        y=cell.top + (gap if cell.bottom - cell.top < BAR else 0.0),
        width=cell.right - cell.left - 2 * gap,
        height=cell.bottom - cell.top - (2 * gap if cell.bottom - cell.top < BAR else 0.0),
        rx=min(4.0, (cell.right - cell.left) / 6),
        fill=fill,
    )


def _piece(box: Box, piece: Piece, look: Look, *, with_rows: bool) -> str:
    """A piece with its rows and machine, as far as there is room for the words."""
    cell, grid = box.cells[piece.machine], box.grid
    extent = f"rows {piece.rows} of {grid.n_rows}"
    if piece.inputs is not None:
        extent += f", from weights for inputs {piece.inputs[0]}:{piece.inputs[1]}"
    if box.is_map:
        start, stop = tile(piece) or (0, grid.shape[1])
        extent += f", columns {start}:{stop} of {grid.shape[1]}"
    told = f"{grid.name}: {extent} on {look.names[piece.machine]}"
    room, ink = cell.width, look.palette.ink(piece.machine)
    x, y = (cell.left + cell.right) / 2, (cell.top + cell.bottom) / 2
    words, halo = [], _halo(piece.machine, look)
    if with_rows:
        words.append(svg.text(x, y, _rows(piece), size=ROWS_SIZE, fill=ink, text_anchor="middle", **halo))
    tag = f"#{piece.machine}" if svg.text_width("#99", size=TAG_SIZE) <= room else str(piece.machine)
    if svg.text_width(tag, size=TAG_SIZE) <= room + 1:
        at = y + (12 if with_rows else 3)
        faint = 0.85 if with_rows else None
        words.append(
            svg.text(x, at, tag, size=TAG_SIZE, fill=ink, text_anchor="middle", fill_opacity=faint, **halo)
        )
    return svg.element("g", svg.title(told), _rectangle(cell, look.palette.fill(piece.machine)), *words)


def _halo(machine: int, look: Look) -> dict[str, object]:
    """What keeps words apart from stripes."""
    if not look.palette.striped(machine):
        return {}
    return {"stroke": look.palette.colour(machine), "stroke_width": 2.5, "paint_order": "stroke"}


def _given(box: Box) -> str:
    label = given_label(box.grid)
    frame = svg.element(
        "rect",
        x=box.left,
        y=box.top + 4,
        width=box.right - box.left,
        height=box.bottom - box.top - 8,
        rx=13,
        fill="#ffffff",
        stroke="#9aa5b1",
        stroke_dasharray="none" if box.grid.layer.kind == "Input" else "3 3",
    )
    middle = (box.left + box.right) / 2
    told = f"{box.grid.layer.kind} {box.grid.name}: fed to every machine that needs it, never sent"
    words = svg.text(middle, box.top + BAR / 2 + 4, label, size=KIND_SIZE, text_anchor="middle")
    return svg.element("g", svg.title(told), frame, words)


def _rows(piece: Piece) -> str:
    """`0:8`; cut by inputs `0:8/0:4`, as in the table."""
    inputs = "" if piece.inputs is None else f"/{piece.inputs[0]}:{piece.inputs[1]}"
    return str(piece.rows) + inputs


def _label_width(piece: Piece) -> float:
    return svg.text_width(_rows(piece), size=ROWS_SIZE) + 14
