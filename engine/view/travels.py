"""Messages between the panels of a layer's picture: rows of inputs and their gradients on the left, what the
layer's own machines exchange on the right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from partita.engine.view import svg
from partita.engine.view.cells import Cells
from partita.engine.view.palette import Palette
from partita.engine.view.panels import Panel, edges_into
from partita.layers.box import BoxSet
from partita.layers.text import readable_bytes
from partita.partitioner.ir.buffer import activations
from partita.partitioner.lower.messages import Message
from partita.partitioner.plan import Plan

LANE = 11.0
"""From one line to the next, in pixels."""
NEAREST = 26.0
"""Pixels by which the first line swings out."""


@dataclass(frozen=True)
class Travel:
    """A message between two panels, and those of its rows that the layer needs.

    `number` is that of the input; None for what the layer's machines exchange.
    """

    message: Message
    rows: BoxSet
    number: int | None

    def cells(self, panel: Panel) -> Cells:
        """Returns where the message begins or ends in a panel."""
        found = panel.layer if self.number is None else panel.inputs[self.number]
        assert found is not None, f"{self.message} begins or ends beside the picture"
        return found

    def heights(self, cells: Cells) -> list[float]:
        """Returns where on the page each box of the rows lies."""
        if self.number is None:
            return [cells.top + cells.height / 2]
        return [cells.middle(box) for box in self.rows]


def travels(plan: Plan, layer: str) -> list[Travel]:
    """Finds every message that this layer needs or causes."""
    owned, found = plan.ownership, []
    for message in plan.undivided_messages:
        if message.layer == layer and not message.buffer.travels_along_edges:
            found.append(Travel(message, message.rows, None))
        for edge in edges_into(owned, layer):
            if message.buffer == edge.buffer:
                found.append(Travel(message, message.rows, edge.number))
            elif message.buffer == activations(edge.layer):
                rows = message.rows & owned.needed(edge, message.destination)
                if rows:
                    found.append(Travel(message, rows, edge.number))
    return found


def lanes(found: Sequence[Travel]) -> tuple[float, float]:
    """Returns the room that lines take on the left and on the right of the panels."""
    words = [travel.message.buffer.contents for travel in found if travel.number is None]
    n_left = len(found) - len(words)
    width = max((svg.text_width(word, size=10) for word in words), default=0.0)
    return (
        (NEAREST + LANE * n_left) * 0.75 + 2 * svg.ARROW if n_left else 0.0,
        (NEAREST + LANE * len(words)) * 0.75 + width + 3 * svg.ARROW if words else 0.0,
    )


def drawn_travels(found: Sequence[Travel], panels: Sequence[Panel], palette: Palette) -> Iterator[str]:
    """Draws a line for each box of rows, in the colour of the sender: solid forward, dashed backward."""
    by_machine = {panel.machine: panel for panel in panels}
    edge = max(panel.layer.right for panel in panels if panel.layer is not None) + svg.ARROW
    swings = {True: NEAREST, False: NEAREST}
    for travel in found:
        message, inside = travel.message, travel.number is None
        backward = message.direction == "backward"
        one, other = (travel.cells(by_machine[m]) for m in (message.source, message.destination))
        x, side = (edge, 1) if inside else (min(one.left, other.left) - 3 - svg.ARROW, -1)
        out = x + side * swings[inside]
        swings[inside] += LANE
        shift = 3.0 if (message.source > message.destination if inside else backward) else -3.0
        start_x, stop_x = (cells.left + (cells.width if inside else -3) for cells in (one, other))
        stop_x += side * svg.ARROW
        lines = []
        for start, end in zip(travel.heights(one), travel.heights(other), strict=True):
            y, to_y = start + shift, end + shift
            d = svg.path("M", start_x, y, "H", x, "C", out, y, out, to_y, x, to_y, "H", stop_x)
            lines.append(svg.element("path", d=d, marker_end=f"url(#to{message.source})"))
        told = f"{message.buffer}[{travel.rows}]: #{message.source} to #{message.destination}"
        look = {"fill": "none", "stroke": palette.line(message.source), "stroke_width": 1.6}
        dash, told = "5 3" if backward else None, f"{told}, {readable_bytes(message.n_bytes)}"
        yield svg.element("g", *lines, tooltip=told, **look, stroke_dasharray=dash)
    beside = [travel.message for travel in found if travel.number is None]
    middle = (panels[0].top + panels[-1].bottom) / 2
    for n, message in enumerate(beside):
        x, y = edge + swings[True] * 0.75, middle + 13 * (n + 1 - len(beside) / 2)
        yield svg.text(x, y, message.buffer.contents, size=10, fill=palette.line(message.source))
