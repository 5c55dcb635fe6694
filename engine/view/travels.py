"""What travels between the panels of a layer's picture: rows of its inputs and their errors on the left, what
the layer's own machines tell one another on the right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from partita.engine.view import svg
from partita.engine.view.palette import Palette
from partita.engine.view.panels import Held, Panel, edges_into, right_of
from partita.layers.box import BoxSet
from partita.partitioner.ir.buffer import activations
from partita.partitioner.lower.messages import Message
from partita.partitioner.plan import Plan
from partita.partitioner.text import readable_bytes

LANE = 11.0
"""From one line to the next, in pixels."""
NEAREST = 26.0
"""How far the first line swings out."""


@dataclass(frozen=True)
class Travel:
    """A message between two panels.

    Args:
        message: what is sent.
        rows: those of the input that this layer needs.
        number: which input; None for what the layer's machines tell one another.
    """

    message: Message
    rows: BoxSet
    number: int | None


def travels(plan: Plan, layer: str) -> list[Travel]:
    """Every message that this layer needs or causes."""
    owned, found = plan.ownership, []
    for message in plan.undivided_messages:
        if message.layer == layer and not message.buffer.travels_along_edges:
            found.append(Travel(message, message.rows, None))
        for edge in edges_into(owned, layer):
            if message.buffer == edge.buffer:
                found.append(Travel(message, message.rows, edge.number))
            if message.buffer == activations(edge.layer):
                rows = message.rows & owned.needed(edge, message.destination)
                if rows:
                    found.append(Travel(message, rows, edge.number))
    return found


def lanes(found: Sequence[Travel]) -> tuple[float, float]:
    """How much room lines take on the left and on the right of the panels."""
    beside = [travel for travel in found if travel.number is None]
    n_left = len(found) - len(beside)
    words = max((svg.text_width(_label(travel), size=10) for travel in beside), default=0.0)
    return (
        (NEAREST + LANE * n_left) * 0.75 + 2 * svg.ARROW if n_left else 0.0,
        (NEAREST + LANE * len(beside)) * 0.75 + words + 3 * svg.ARROW if beside else 0.0,
    )


def drawn_travels(found: Sequence[Travel], panels: Sequence[Panel], palette: Palette) -> Iterator[str]:
    """A line for each run of rows, in the colour of who sends; what goes up in one stroke, what comes down
    dashed.
    """
    by_machine = {panel.machine: panel for panel in panels}
    layers = [panel.layer for panel in panels if panel.layer is not None]
    edge = max(right_of(held, alone=False) for held in layers) + svg.ARROW
    swings = {True: NEAREST, False: NEAREST}
    beside = [travel for travel in found if travel.number is None]
    for travel in found:
        ends = [by_machine[m] for m in (travel.message.source, travel.message.destination)]
        to_the_right = travel.number is None
        held = [panel.layer if travel.number is None else panel.inputs[travel.number] for panel in ends]
        one, other = held
        assert one is not None and other is not None, f"{travel.message} begins or ends beside the picture"
        swing = swings[to_the_right]
        swings[to_the_right] += LANE
        x = edge if to_the_right else min(one.cells.left, other.cells.left) - 3 - svg.ARROW
        colour = palette.line(travel.message.source)
        yield _line(travel, (one, other), x=x, swing=swing if to_the_right else -swing, colour=colour)
    top, bottom = panels[0].top, panels[-1].bottom
    for n, travel in enumerate(beside):
        x, y = edge + swings[True] * 0.75, (top + bottom) / 2 + 13 * (n + 1 - len(beside) / 2)
        yield svg.text(x, y, _label(travel), size=10, fill=palette.line(travel.message.source))


def _line(travel: Travel, ends: tuple[Held, Held], *, x: float, swing: float, colour: str) -> str:
    message, down = travel.message, travel.message.direction == "backward"
    back = down if travel.number is not None else message.source > message.destination
    shift = 3.0 if back else -3.0
    beside = [held.cells.left + held.cells.width if swing > 0 else held.cells.left - 3 for held in ends]
    stop = beside[1] + (svg.ARROW if swing > 0 else -svg.ARROW)
    lines = []
    for start, end in zip(*(_heights(held, travel) for held in ends), strict=True):
        y, to_y = start + shift, end + shift
        curve = " ".join(map(svg.number, (x + swing, y, x + swing, to_y, x, to_y)))
        d = f"M{svg.number(beside[0])} {svg.number(y)}H{svg.number(x)}C{curve}H{svg.number(stop)}"
        lines.append(svg.element("path", d=d, marker_end=f"url(#to{message.source})"))
    told = f"{message.buffer}[{travel.rows}]: #{message.source} to #{message.destination}"
    return svg.element(
        "g",
        svg.title(f"{told}, {readable_bytes(message.n_bytes)}"),
        *lines,
        fill="none",
        stroke=colour,
        stroke_width=1.6,
        stroke_dasharray="5 3" if down else None,
    )


def _heights(held: Held, travel: Travel) -> list[float]:
    """Where on the page each run of the rows lies."""
    if travel.number is None:
        return [held.cells.top + held.cells.height / 2]
    return [held.middle(run) for run in travel.rows]


def _label(travel: Travel) -> str:
    return travel.message.buffer.contents
