"""One layer of a plan as an SVG picture: its nodes and those of its inputs as cells, who holds which rows,
and which rows travel.

Text only: no drawing library, no tensor, no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from partita.engine.view import svg
from partita.engine.view.cells import squares
from partita.engine.view.marks import behind, marks, over
from partita.engine.view.palette import Palette
from partita.engine.view.panels import Held, Panel, caption, panels, right_of
from partita.engine.view.travels import drawn_travels, lanes, travels
from partita.layers.box import BoxSet, Shape
from partita.layers.checks import is_whole
from partita.layers.graph import Graph
from partita.layers.text import counted
from partita.partitioner.plan import Plan

MARGIN, HEADING, NOTES = 18.0, 30.0, 18.0
MOST_NODES = 2_000
"""So many cells can still be told apart."""
INSET = 3.0
"""Where colours are machines, so much of a cell keeps its machine's."""
ALONE, GIVEN = "#ccd4db", "#f4f6f8"
"""Cells of a network that nobody has cut, and of an input that is fed."""


def draw_layer(plan: Plan, layer: str, nodes: Sequence[Shape | int] | None = None) -> str:
    """The picture of a layer, as the text of an SVG file.

    Args:
        plan: with one machine, it shows the wiring alone; with several, the rows of each and what travels.
        layer: its name.
        nodes: those whose senders are marked, by their positions in the grid; the middle one if not given.

    Raises:
        ValueError: there is no such layer or node, or there are too many nodes to draw.
    """
    return _Picture(plan, layer, _chosen(plan.graph, layer, nodes)).text()


def _chosen(graph: Graph, layer: str, nodes: Sequence[Shape | int] | None) -> list[int]:
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
    if nodes is None:
        return [
            _flat(tuple(extent // 2 for extent in grid.shape[:2]) + (0,) * len(grid.shape[2:]), grid.shape)
        ]
    return [_flat((node,) if is_whole(node) else node, grid.shape) for node in nodes]


def _flat(position: object, shape: Shape) -> int:
    found = tuple(position) if isinstance(position, tuple | list) else ()
    inside = len(found) == len(shape) and all(map(is_whole, found))
    if not inside or any(not 0 <= n < extent for n, extent in zip(found, shape, strict=True)):
        raise ValueError(f"there is no node {position!r} in a grid of {shape}; count each axis from 0")
    node = 0
    for n, extent in zip(found, shape, strict=True):
        node = node * extent + int(n)
    return node


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
        """The whole document."""
        held = [h for panel in self.panels for h in (*panel.inputs, panel.layer) if h is not None]
        right = max(right_of(h, alone=self.alone) for h in held)
        lines = [
            svg.text_width(self._heading, size=13),
            *(svg.text_width(note, size=11) for note in self._notes),
        ]
        width = max(right + self.beside, MARGIN + max(lines)) + MARGIN
        bottom = max(panel.bottom for panel in self.panels)
        height = bottom + MARGIN + NOTES * len(self._notes)
        notes = (
            svg.text(MARGIN, bottom + NOTES * (n + 1) + 2, words, size=11, fill=svg.SOFT)
            for n, words in enumerate(self._notes)
        )
        parts = [
            svg.element("defs", *self._arrows()),
            svg.text(MARGIN, MARGIN + 12, self._heading, size=13, font_weight=600),
            *("".join(self._panel(panel)) for panel in self.panels),
            *drawn_travels(self.travels, self.panels, self.palette),
            *notes,
        ]
        return svg.document(self._heading, width, height, parts)

    @property
    def _heading(self) -> str:
        shape = "×".join(map(str, self.grid.shape))
        over_what = " and ".join(dict.fromkeys(self.grid.sources))
        machines = "" if self.alone else f", over {counted(len(self.plan.cluster), 'machine')}"
        return f"{self.grid.name}: {self.grid.layer.kind} {shape} over {over_what}{machines}"

    @property
    def _notes(self) -> list[str]:
        """What is not plain to see."""
        held = [h for panel in self.panels for h in panel.inputs if h is not None]
        found = []
        if any(sum(h.cells.vertical) + sum(h.cells.horizontal) for h in held):
            found.append("hollow cells: padding, always zero")
        if any(
            travel.number is not None and travel.message.direction == "forward" for travel in self.travels
        ):
            found.append("dashed cells: rows received from the machine of that colour")
        if any(travel.message.direction == "backward" for travel in self.travels):
            found.append("dashed lines: errors and gradients, which come down")
        if not self.travels and not self.alone:
            found.append("nothing travels")
        return found

    def _arrows(self) -> Iterator[str]:
        return self.palette.definitions()

    def _panel(self, panel: Panel) -> Iterator[str]:
        if not self.alone:
            yield self._machine(panel)
        yield from behind(panel, self.marks)
        for held in (*panel.inputs, panel.layer):
            if held is not None:
                yield caption(held, alone=self.alone)
                yield from self._cells(held, panel.machine)
        yield from over(panel, self.marks, inset=0.0 if self.alone else INSET)

    def _machine(self, panel: Panel) -> str:
        palette, name = self.palette, self.palette.names[panel.machine]
        x = min(h.cells.left for h in (*panel.inputs, panel.layer) if h is not None)
        swatch = svg.element(
            "rect", x=x, y=panel.top + 2, width=22, height=15, rx=3, fill=palette.fill(panel.machine)
        )
        ink = palette.ink(panel.machine)
        tag = svg.text(x + 11, panel.top + 13, f"#{panel.machine}", size=9, fill=ink, text_anchor="middle")
        return swatch + tag + svg.text(x + 30, panel.top + 14, name, size=12, font_weight=600)

    def _cells(self, held: Held, machine: int) -> Iterator[str]:
        own = ALONE if self.alone else svg.mixed(self.palette.colour(machine), "#ffffff", 0.45)
        yield _filled(held, held.own, fill=own)
        if self.plan.graph[held.name].is_placeholder:
            yield _filled(held, held.heard, fill=GIVEN, stroke="#9aa5b1")
        else:
            for piece in self.owned.of(held.name):
                rows = held.heard & piece.rows
                pale = svg.mixed(self.palette.colour(piece.machine), "#ffffff", 0.8)
                line = self.palette.line(piece.machine)
                yield _filled(held, rows, fill=pale, stroke=line, stroke_dasharray="2 2")
        padding = [held.cells.corner(place) for place in held.cells.padding()]
        if padding:
            yield svg.element(
                "path", d=squares(padding), fill="none", stroke="#c3ccd4", stroke_dasharray="2 2"
            )


def _filled(held: Held, rows: BoxSet, **attributes: object) -> str:
    corners = [held.cells.corner(place) for run in rows for place in held.cells.places(run)]
    return svg.element("path", d=squares(corners), **attributes) if corners else ""
