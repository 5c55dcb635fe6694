"""Layers as bars: how wide, where, and where each machine's piece of them lies."""

from __future__ import annotations

from dataclasses import dataclass

from partita.layers import rows as row_sets
from partita.layers.graph import Grid
from partita.partitioner.drawing import svg
from partita.partitioner.ownership import Ownership, Piece

BAR = 34.0
"""Height of a bar, in pixels."""
LEAST_BAR, CHIP = 340.0, 120.0
ROWS_SIZE, NAME_SIZE, KIND_SIZE = 11.5, 13.0, 11.0
LONGEST = 26
"""Characters of a name or kind."""


@dataclass(frozen=True)
class Box:
    """A layer's bar: its left and right edge, its top, and the span of each machine's piece."""

    grid: Grid
    left: float
    right: float
    top: float
    spans: dict[int, tuple[float, float]]

    @property
    def bottom(self) -> float:
        """Of the bar; y grows downwards."""
        return self.top + BAR


def bar_widths(owned: Ownership) -> dict[str, float]:
    """For each layer: where there are rows to cut, all bars are as wide as the widest labels need."""
    widest = max((sum(map(_piece_width, owned.of(g.name))) for g in owned.graph.computed), default=0.0)
    found = {
        g.name: CHIP if len(owned.of(g.name)) == g.n_rows == 1 else max(LEAST_BAR, widest)
        for g in owned.graph.computed
    }
    for grid in owned.graph.grids:
        if grid.is_given:
            found[grid.name] = max(CHIP, svg.text_width(given_label(grid), size=KIND_SIZE) + 24)
    return found


def label_width(grid: Grid) -> float:
    """Of the text to the left of the bar."""
    if grid.is_given:
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


def place(grid: Grid, pieces: tuple[Piece, ...], *, centre: float, top: float, width: float) -> Box:
    """The bar around a centre; pieces are as wide as their labels, and share the rest by their rows."""
    rest = width - sum(map(_piece_width, pieces))
    left = centre - width / 2
    total = row_sets.count(tuple(piece.rows for piece in pieces))  # a loss may be on several machines at once
    spans, x = {}, left
    for piece in pieces:
        share = _piece_width(piece) + rest * row_sets.count((piece.rows,)) / total
        spans[piece.machine] = (x, x + share)
        x += share
    return Box(grid, left, left + width, top, spans)


def drawn(box: Box, pieces: tuple[Piece, ...], machines: tuple[str, ...]) -> str:
    """The bar with its pieces and labels."""
    if box.grid.is_given:
        return _given(box)
    name, kind = labels(box.grid)
    middle, x = box.top + BAR / 2, box.left - 10
    parts = [
        svg.text(x, middle - 3, name, size=NAME_SIZE, font_weight=600, text_anchor="end"),
        svg.text(x, middle + 12, kind, size=KIND_SIZE, fill=svg.SOFT, text_anchor="end"),
    ]
    for piece in pieces:
        left, right = box.spans[piece.machine]
        fill = svg.colour(piece.machine)
        ink, centre = svg.ink_on(fill), (left + right) / 2
        told = f"{box.grid.name}: rows {_rows(piece)} of {box.grid.n_rows} on {machines[piece.machine]}"
        block = svg.element(
            "rect", x=left + 1, y=box.top, width=right - left - 2, height=BAR, rx=4, fill=fill
        )
        rows = svg.text(centre, middle, _rows(piece), size=ROWS_SIZE, fill=ink, text_anchor="middle")
        tag = svg.text(
            centre,
            middle + 12,
            f"#{piece.machine}",
            size=9,
            fill=ink,
            text_anchor="middle",
            fill_opacity=0.85,
        )
        parts.append(svg.element("g", svg.title(told), block, rows, tag))
    return svg.element("g", *parts)


def _given(box: Box) -> str:
    label = given_label(box.grid)
    frame = svg.element(
        "rect",
        x=box.left,
        y=box.top + 4,
        width=box.right - box.left,
        height=BAR - 8,
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
    return row_sets.text((piece.rows,))


def _piece_width(piece: Piece) -> float:
    return svg.text_width(_rows(piece), size=ROWS_SIZE) + 14
