"""What travels between the panels of a layer's picture: rows of its inputs and their errors on the left, what
the layer's own machines tell one another on the right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from partita.layers import rows as row_sets
from partita.layers.rows import Rows
from partita.partitioner.bare_plan import BarePlan
from partita.partitioner.drawing import svg
from partita.partitioner.drawing.panels import Held, Panel, edges_into
from partita.partitioner.messages import Message
from partita.partitioner.table import readable_bytes

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
    rows: Rows
    number: int | None


def travels(plan: BarePlan, layer: str) -> list[Travel]:
    """Every message that this layer needs or causes."""
    owned, found = plan.ownership, []
    for message in plan.messages:
        if message.layer == layer and "." in message.buffer:
            found.append(Travel(message, message.rows, None))
        for edge in edges_into(owned, layer):
            if message.buffer == edge.name:
                found.append(Travel(message, message.rows, edge.number))
            rows = row_sets.intersection(message.rows, owned.needed(edge, message.destination))
            if message.buffer == edge.layer and rows:
                found.append(Travel(message, rows, edge.number))
    return found


def lanes(found: Sequence[Travel]) -> tuple[float, float]:
    """How much room lines take on the left and on the right of the panels."""
    beside = [travel for travel in found if travel.number is None]
    n_left = len(found) - len(beside)
    words = max((svg.text_width(_label(travel), size=10) for travel in beside), default=0.0)
    return (
        (NEAREST + LANE * n_left) * 0.75 + 8 if n_left else 0.0,
        (NEAREST + LANE * len(beside)) * 0.75 + words + 16 if beside else 0.0,
    )


def drawn_travels(found: Sequence[Travel], panels: Sequence[Panel]) -> Iterator[str]:
    """A line for each, in the colour of who sends; what goes up in one stroke, what comes down dashed."""
    by_machine = {panel.machine: panel for panel in panels}
    rights = [panel.layer.cells.left + panel.layer.cells.width for panel in panels if panel.layer]
    counts = {True: 0, False: 0}
    for travel in found:
        ends = [by_machine[m] for m in (travel.message.source, travel.message.destination)]
        beside = travel.number is None
        held = [panel.layer if travel.number is None else panel.inputs[travel.number] for panel in ends]
        one, other = held
        assert one is not None and other is not None, f"{travel.message} begins or ends beside the picture"
        reach = NEAREST + LANE * counts[beside]
        counts[beside] += 1
        x = max(rights) if beside else min(one.cells.left, other.cells.left) - 3
        yield _line(travel, (one, other), x=x, swing=reach if beside else -reach)


def _line(travel: Travel, ends: tuple[Held, Held], *, x: float, swing: float) -> str:
    message, down = travel.message, travel.message.direction == "down"
    shift = 3.0 if down else -3.0
    y, to_y = (_height(held, travel) + shift for held in ends)
    stop = x + (svg.ARROW if swing > 0 else -svg.ARROW)
    numbers = (x + swing, y, x + swing, to_y, stop, to_y)
    d = f"M{svg.number(x)} {svg.number(y)}C" + " ".join(map(svg.number, numbers))
    told = f"{message.buffer}[{row_sets.text(travel.rows)}]: #{message.source} to #{message.destination}"
    line = svg.element(
        "path",
        svg.title(f"{told}, {readable_bytes(message.n_bytes)}"),
        d=d,
        fill="none",
        stroke=svg.line_colour(message.source),
        stroke_width=1.6,
        stroke_dasharray="5 3" if down else None,
        marker_end=f"url(#to{message.source})",
    )
    if travel.number is not None:
        return line
    end = svg.text(
        x + swing * 0.75 + 6, (y + to_y) / 2 + 4 + 3 * shift, _label(travel), size=10, fill=svg.SOFT
    )
    return line + end


def _height(held: Held, travel: Travel) -> float:
    if travel.number is not None:
        return held.middle(travel.rows)
    return held.cells.top + held.cells.height / 2


def _label(travel: Travel) -> str:
    return travel.message.buffer.partition(".")[2]
