"""Chosen nodes of a layer, the cells that each listens to, and the lines between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from partita.engine.view import svg
from partita.engine.view.cells import CELL, Place, place_of, senders, squares
from partita.engine.view.panels import Held, Panel
from partita.layers.graph import Graph

NODES = ("#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Colours of chosen nodes: none is that of machine 0 or 1."""


@dataclass(frozen=True)
class Mark:
    """A chosen node: its place in the layer, and those that it listens to in each input."""

    colour: str
    place: Place
    heard: tuple[tuple[Place, ...], ...]


def marks(graph: Graph, layer: str, nodes: Sequence[int]) -> list[Mark]:
    """One for each node, by its flat position."""
    grid = graph[layer]
    shapes = [graph[source].shape for source in grid.sources]
    return [
        Mark(
            NODES[n % len(NODES)],
            place_of(node, grid.shape),
            tuple(tuple(dict.fromkeys(senders(grid, node, shape))) for shape in shapes),
        )
        for n, node in enumerate(nodes)
    ]


def behind(panel: Panel, chosen: Sequence[Mark]) -> Iterator[str]:
    """The lines from senders to nodes, to be drawn before any cell."""
    for mark in chosen:
        if panel.layer is None or not panel.layer.shows(mark.place):
            continue
        x, y = panel.layer.cells.corner(mark.place)
        for held, heard in zip(panel.inputs, mark.heard, strict=True):
            shown = [] if held is None else [place for place in heard if held.shows(place)]
            if held is not None and shown:
                last = max(sheet for *_, sheet in shown)
                yield from _lines(held, [p for p in shown if p[2] == last], (x, y), mark.colour)


def _lines(held: Held, places: Sequence[Place], to: tuple[float, float], colour: str) -> Iterator[str]:
    """A funnel from a patch, a line from each cell of anything else."""
    x, y = to
    rows, columns = sorted({p[0] for p in places}), sorted({p[1] for p in places})
    box = (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
    if held.cells.columns == 1 or len(places) < box:
        ends = ((held.cells.corner(place), svg.number(y + CELL / 2)) for place in places)
        lines = (
            f"M{svg.number(left + CELL / 2)} {svg.number(top + CELL / 2)}L{svg.number(x)} {end}"
            for (left, top), end in ends
        )
        yield svg.element("path", d="".join(lines), stroke=colour, stroke_opacity=0.8, fill="none")
        return
    sheet = places[0][2]
    (right, high), (_, low) = (held.cells.corner((row, columns[-1], sheet)) for row in (rows[0], rows[-1]))
    corners = [(right + CELL, high), (x, y), (x, y + CELL), (right + CELL, low + CELL)]
    path = "L".join(f"{svg.number(px)} {svg.number(py)}" for px, py in corners)
    yield svg.element("path", d=f"M{path}Z", stroke=colour, stroke_opacity=0.8, fill=colour, fill_opacity=0.2)


def over(panel: Panel, chosen: Sequence[Mark], *, inset: float) -> Iterator[str]:
    """The chosen nodes and their senders, to be drawn over the cells. A cell that several hear is divided.

    Args:
        panel: of a machine.
        chosen: the nodes; those of other machines are left out.
        inset: how many pixels of a sender's own colour are left to see on each side.
    """
    for number, held in enumerate(panel.inputs):
        if held is None or panel.layer is None:
            continue
        listeners: dict[Place, list[str]] = {}
        for mark in chosen:
            for place in mark.heard[number] if panel.layer.shows(mark.place) else ():
                if held.shows(place):
                    listeners.setdefault(place, []).append(mark.colour)
        yield from _heard(held, listeners, inset)
    for mark in chosen:
        if panel.layer is not None and panel.layer.shows(mark.place):
            d = squares([panel.layer.cells.corner(mark.place)])
            yield svg.element("path", d=d, fill=mark.colour, stroke=svg.INK)


def _heard(held: Held, listeners: Mapping[Place, Sequence[str]], inset: float) -> Iterator[str]:
    filled: dict[tuple[str, float], list[tuple[float, float]]] = {}
    hollow: dict[str, list[tuple[float, float]]] = {}
    for place, colours in listeners.items():
        x, y = held.cells.corner(place)
        width = (CELL - 2 * inset) / len(colours)
        for n, colour in enumerate(colours):
            if held.cells.holds(place):
                filled.setdefault((colour, width), []).append((x + inset + n * width, y + inset))
            else:
                hollow.setdefault(colour, []).append((x + n * 2, y))
    for (colour, width), corners in filled.items():
        yield svg.element("path", d=squares(corners, width=width, height=CELL - 2 * inset), fill=colour)
    for colour, corners in hollow.items():
        yield svg.element("path", d=squares(corners), fill="none", stroke=colour, stroke_width=1.5)
