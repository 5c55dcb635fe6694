"""One layer of a plan as an SVG picture: its nodes and those of its inputs as cells, which machine holds
which rows, and which rows travel. Text only: no drawing library, no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from partita.engine.view import svg
from partita.engine.view.cells import Cells
from partita.engine.view.marks import behind, marks, over
from partita.engine.view.palette import Palette
from partita.engine.view.panels import Panel, panels
from partita.engine.view.travels import drawn_travels, lanes, travels
from partita.layers.box import Shape
from partita.layers.checks import is_whole
from partita.layers.graph import Graph
from partita.layers.text import counted
from partita.partitioner.plan import Plan

MARGIN, HEADING, NOTES = 18.0, 30.0, 18.0
MOST_NODES = 2_000
"""Number of cells that can still be told apart."""
INSET = 3.0
"""Pixels of a cell on each side that keep the machine's colour, where colours are machines."""
ALONE, FED = "#ccd4db", "#f4f6f8"
"""Cells of a network that nobody has cut, and of an input that is fed."""
LONGEST = 60
"""Characters of a name in the heading."""


def draw_layer(plan: Plan, layer: str, nodes: Sequence[Shape | int] | None = None) -> str:
    """Draws a layer, as the text of an SVG file.

    Args:
        plan: with one machine, the picture shows the wiring alone; with several, the rows of each and what
            travels.
        layer: its name.
        nodes: those whose senders are marked, by their positions in the grid; the middle one if not given.

    Raises:
        ValueError: there is no such layer or node, or there are too many nodes to draw.
    """
    return _Picture(plan, layer, _chosen(plan.graph, layer, nodes)).text()


def _chosen(graph: Graph, layer: str, nodes: Sequence[Shape | int] | None) -> list[int]:
    """Returns the flat positions of the nodes to be marked."""
    computed = [grid.name for grid in graph.computed]
    if layer not in computed:
        raise ValueError(f"there is no layer {layer!r} to draw; choose one of {', '.join(computed)}")
    grid = graph[layer]
    n_nodes = grid.n_nodes + sum(graph[source].n_nodes for source in grid.sources)
    if n_nodes > MOST_NODES:
        raise ValueError(
            f"'{layer}' and its inputs have {n_nodes:,} nodes, and at most {MOST_NODES:,} can be drawn one "
            "by one; draw the same layer over a smaller input"
        )
    middle = tuple(extent // 2 for extent in grid.shape[:2]) + (0,) * len(grid.shape[2:])
    found = [middle] if nodes is None else [(node,) if is_whole(node) else node for node in nodes]
    return [_flat(node, grid.shape) for node in found]


def _flat(position: object, shape: Shape) -> int:
    found = tuple(position) if isinstance(position, tuple | list) else ()
    inside = len(found) == len(shape) and all(map(is_whole, found))
    if not inside or any(not 0 <= n < extent for n, extent in zip(found, shape, strict=True)):
        raise ValueError(f"there is no node {position!r} in a grid of {shape}; count each axis from 0")
    return int(np.ravel_multi_index(found, shape))


class _Picture:
    """Places everything once, then writes it from the back to the front."""

    def __init__(self, plan: Plan, layer: str, nodes: Sequence[int]) -> None:
        self.plan, self.owned, self.grid = plan, plan.ownership, plan.graph[layer]
        self.palette = Palette(tuple(machine.name for machine in plan.cluster.machines))
        self.alone = len(plan.cluster) == 1
        self.travels = [] if self.alone else travels(plan, layer)
        left, self.beside = lanes(self.travels)
        self.panels = panels(self.owned, layer, left=MARGIN + left, top=MARGIN + HEADING)
        self.marks = marks(plan.graph, layer, nodes)

    def text(self) -> str:
        """Writes the whole document."""
        heading, notes = self._heading(LONGEST), self._notes()
        right = max(cells.right for panel in self.panels for cells in panel.grids)
        lines = [svg.text_width(heading, size=13), *(svg.text_width(note, size=11) for note in notes)]
        width = max(right + self.beside, MARGIN + max(lines)) + MARGIN
        bottom = max(panel.bottom for panel in self.panels)
        told = self._heading()
        parts = [
            svg.element("defs", *self.palette.definitions()),
            svg.text(MARGIN, MARGIN + 12, heading, size=13, font_weight=600, full=told),
            *("".join(self._panel(panel)) for panel in self.panels),
            *drawn_travels(self.travels, self.panels, self.palette),
        ]
        for n, note in enumerate(notes, start=1):
            parts.append(svg.text(MARGIN, bottom + NOTES * n + 2, note, size=11, fill=svg.SOFT))
        return svg.document(told, width, bottom + MARGIN + NOTES * len(notes), parts)

    def _heading(self, most: int | None = None) -> str:
        names = [self.grid.name, *dict.fromkeys(self.grid.sources)]
        name, *sources = [svg.shortened(name, most=most or len(name)) for name in names]
        machines = "" if self.alone else f", over {counted(len(self.plan.cluster), 'machine')}"
        kind = f"{self.grid.layer.kind} {svg.shape_text(self.grid.shape)}"
        return f"{name}: {kind} over {' and '.join(sources)}{machines}"

    def _notes(self) -> list[str]:
        """Returns the meaning of what does not explain itself."""
        inputs = [cells for panel in self.panels for cells in panel.inputs if cells is not None]
        directions = {(travel.number is None, travel.message.direction) for travel in self.travels}
        found = []
        if any(sum(cells.vertical) + sum(cells.horizontal) for cells in inputs):
            found.append("hollow cells: padding, always zero")
        if (False, "forward") in directions:
            found.append("dashed cells: rows received from the machine of that colour")
        if {(True, "backward"), (False, "backward")} & directions:
            found.append("dashed lines: gradients, backward")
        if not self.travels and not self.alone:
            found.append("nothing travels")
        return found

    def _panel(self, panel: Panel) -> Iterator[str]:
        if not self.alone:
            x, name = min(cells.left for cells in panel.grids), self.palette.names[panel.machine]
            yield self.palette.swatch(panel.machine, x, panel.top + 2, 15)
            yield svg.text(x + 30, panel.top + 14, name, size=12, font_weight=600)
        yield from behind(panel, self.marks)
        for cells in panel.grids:
            yield cells.caption()
            yield from self._cells(cells, panel.machine)
        yield from over(panel, self.marks, inset=0.0 if self.alone else INSET)

    def _cells(self, cells: Cells, machine: int) -> Iterator[str]:
        palette = self.palette
        mine = ALONE if self.alone else svg.mixed(palette.colour(machine), "#ffffff", 0.45)
        yield cells.filled(cells.own, fill=mine)
        if cells.grid.is_placeholder:
            yield cells.filled(cells.received, fill=FED, stroke="#9aa5b1")
        else:
            for piece in self.owned.of(cells.grid.name):
                pale = svg.mixed(palette.colour(piece.machine), "#ffffff", 0.8)
                look = {"stroke": palette.line(piece.machine), "stroke_dasharray": "2 2"}
                yield cells.filled(cells.received & piece.rows, fill=pale, **look)
        yield cells.padding()
