"""Chosen nodes of a layer, the cells that each uses, and the lines between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from partita.engine.view import svg
from partita.engine.view.cells import CELL, Cells, Place, place_of, senders, squares
from partita.engine.view.panels import Panel
from partita.layers.graph import Graph

NODES = ("#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Colours of chosen nodes: none is that of machine 0 or 1."""


@dataclass(frozen=True)
class Mark:
    """A chosen node: its place in the layer, and the places that it uses of each input."""

    colour: str
    place: Place
    used: tuple[tuple[Place, ...], ...]


def marks(graph: Graph, layer: str, nodes: Sequence[int]) -> list[Mark]:
    """Makes a mark for each node, by its flat position."""
    grid, found = graph[layer], []
    shapes = [graph[source].shape for source in grid.sources]
    for n, node in enumerate(nodes):
        used = tuple(tuple(dict.fromkeys(senders(grid, node, k, shape))) for k, shape in enumerate(shapes))
        found.append(Mark(NODES[n % len(NODES)], place_of(node, grid.shape), used))
    return found


def behind(panel: Panel, chosen: Sequence[Mark]) -> Iterator[str]:
    """Draws the lines from senders to nodes, which lie behind all cells."""
    for mark in chosen:
        if panel.layer is None or not panel.layer.shows(mark.place):
            continue
        for cells, used in zip(panel.inputs, mark.used, strict=True):
            shown = [place for place in used if cells and cells.shows(place)]
            if cells and shown:
                last = max(sheet for *_, sheet in shown)
                places = [place for place in shown if place[2] == last]
                yield _lines(cells, places, panel.layer.corner(mark.place), mark.colour)


def _lines(cells: Cells, places: Sequence[Place], to: tuple[float, float], colour: str) -> str:
    """Draws a funnel from a patch, a line from each cell of anything else."""
    x, y = to
    rows, columns = sorted({p[0] for p in places}), sorted({p[1] for p in places})
    look: dict[str, object] = {"stroke": colour, "stroke_opacity": 0.8}
    if cells.columns == 1 or len(places) < (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1):
        corners = map(cells.corner, places)
        half = CELL / 2
        d = "".join(svg.path("M", left + half, top + half, "L", x, y + half) for left, top in corners)
        return svg.element("path", d=d, **look, fill="none")
    sheet = places[0][2]
    (right, high), (_, low) = (cells.corner((row, columns[-1], sheet)) for row in (rows[0], rows[-1]))
    right += CELL
    d = svg.path("M", right, high, "L", x, y, "L", x, y + CELL, "L", right, low + CELL, "Z")
    return svg.element("path", d=d, **look, fill=colour, fill_opacity=0.2)


def over(panel: Panel, chosen: Sequence[Mark], *, inset: float) -> Iterator[str]:
    """Draws the chosen nodes of a panel and their senders over all cells; a cell that several use is divided.

    Of a sender's own colour, `inset` pixels stay visible on each side.
    """
    if panel.layer is None:
        return
    mine = [mark for mark in chosen if panel.layer.shows(mark.place)]
    for number, cells in enumerate(panel.inputs):
        if cells is None:
            continue
        users: dict[Place, list[str]] = {}
        for mark in mine:
            for place in filter(cells.shows, mark.used[number]):
                users.setdefault(place, []).append(mark.colour)
        yield from _used(cells, users, inset)
    for mark in mine:
        d = squares([panel.layer.corner(mark.place)])
        yield svg.element("path", d=d, fill=mark.colour, stroke=svg.INK)


def _used(cells: Cells, users: Mapping[Place, Sequence[str]], inset: float) -> Iterator[str]:
    corners: dict[tuple[bool, str, float], list[tuple[float, float]]] = {}
    for place, colours in users.items():
        x, y = cells.corner(place)
        width, hollow = (CELL - 2 * inset) / len(colours), not cells.holds(place)
        for n, colour in enumerate(colours):
            key = (hollow, colour, CELL if hollow else width)
            corner = (x + n * 2, y) if hollow else (x + inset + n * width, y + inset)
            corners.setdefault(key, []).append(corner)
    for (hollow, colour, width), where in sorted(corners.items(), key=lambda item: item[0][0]):
        d = squares(where, width=width, height=CELL if hollow else CELL - 2 * inset)
        outline = {"fill": "none", "stroke": colour, "stroke_width": 1.5}
        yield svg.element("path", d=d, **(outline if hollow else {"fill": colour}))
