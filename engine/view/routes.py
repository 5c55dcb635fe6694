"""Messages as lines: from which edge of which piece to which, by which lanes, and how wide."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from partita.engine.view import svg
from partita.engine.view.boxes import Box
from partita.engine.view.look import Look
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.ir.buffer import Edge
from partita.partitioner.lower.messages import Message
from partita.partitioner.text import readable_bytes

Port: TypeAlias = tuple[str, int, Literal["top", "bottom"]]
"""An edge of a machine's piece of a layer."""
Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Route:
    """A message between two ports. `via`: the layers whose lanes it takes; None: it stays below one bar."""

    message: Message
    start: Port
    stop: Port
    via: tuple[str, str] | None

    @property
    def of_machines(self) -> bool:
        """Whether it is not of nodes, but of what the machines of a layer tell one another."""
        return not self.message.buffer.travels_along_edges

    @property
    def consumer(self) -> str:
        """The layer below which it is drawn."""
        return self.via[1] if self.via else self.start[0]

    def renamed(self, names: Mapping[str, str]) -> Route:
        """The same between other layers."""
        start, stop = ((names[port[0]], *port[1:]) for port in (self.start, self.stop))
        via = None if self.via is None else (names[self.via[0]], names[self.via[1]])
        return Route(self.message, start, stop, via)


def route(owned: Ownership, message: Message) -> Route:
    """Up: to the first layer there that listens. Down: to the owner, or to the next in a sum.

    What the machines of one layer tell one another stays below its bar: weights, their gradients, sums over
    scores; of one that is cut by its inputs partial sums and errors.
    """
    if not message.buffer.travels_along_edges:
        below: list[Port] = [(message.layer, m, "bottom") for m in (message.source, message.destination)]
        return Route(message, below[0], below[1], None)
    if message.direction == "forward":
        edge = next(edge for edge in owned.edges(message.layer) if _hears(owned, edge, message))
        return Route(
            message,
            (message.layer, message.source, "top"),
            (edge.consumer, message.destination, "bottom"),
            (message.layer, edge.consumer),
        )
    assert message.buffer.edge is not None, f"{message} lies on no edge"
    edge = message.buffer.edge
    start: Port = (edge.consumer, message.source, "bottom")
    if message.rows & owned.rows(message.layer, message.destination):
        return Route(
            message, start, (message.layer, message.destination, "top"), (message.layer, edge.consumer)
        )
    return Route(message, start, (edge.consumer, message.destination, "bottom"), None)


def _hears(owned: Ownership, edge: Edge, message: Message) -> bool:
    return bool(owned.needed(edge, message.destination) & message.rows)


def ends(routes: Sequence[Route], boxes: Mapping[str, Box], look: Look) -> list[tuple[Point, Point]]:
    """Where each line begins and ends: lines share the edge of a piece evenly, sorted by where they go."""
    at: dict[Port, list[tuple[float, int, int]]] = {}
    for n, found in enumerate(routes):
        for end, (here, there) in enumerate(((found.start, found.stop), (found.stop, found.start))):
            at.setdefault(here, []).append((sum(boxes[there[0]].span(there[1])) / 2, n, end))
    places: dict[tuple[int, int], Point] = {}
    for port, lines in at.items():
        box, outward = boxes[port[0]], -1 if port[2] == "top" else 1
        left, right = box.span(port[1])
        margin = min(4.0, (right - left) / 8)
        y = box.top if port[2] == "top" else box.bottom
        for k, (_, n, end) in enumerate(sorted(lines), start=1):
            x = left + margin + (right - left - 2 * margin) * k / (len(lines) + 1)
            places[n, end] = x, y + outward * look.arrow * end  # room for the arrow's head where it stops
    return [(places[n, 0], places[n, 1]) for n in range(len(routes))]


def path(found: Route, start: Point, stop: Point, lanes: Sequence[Point]) -> str:
    """The line as an SVG path; `lanes` are the lower and upper ends of those on the way, from below."""
    if found.via is None:
        dip = start[1] + min(26.0, 12 + abs(start[0] - stop[0]) / 12)
        numbers = (start[0], dip, stop[0], dip, stop[0], stop[1])
        return f"M{svg.number(start[0])} {svg.number(start[1])}C" + " ".join(map(svg.number, numbers))
    return svg.points([start, *(lanes if found.message.direction == "forward" else lanes[::-1]), stop])


def widths(routes: Sequence[Route], *, most: int) -> list[float]:
    """Of the lines, in pixels: they grow with the root of the bytes, and are thin where there are many.

    Args:
        routes: that are drawn one by one.
        most: bytes of the largest message of all.
    """
    crowds: dict[tuple[str, str] | str, int] = {}
    for found in routes:
        crowds[found.via or found.start[0]] = crowds.get(found.via or found.start[0], 0) + 1
    widest = max(1.6, min(4.5, 60 / max(crowds.values(), default=1)))
    return [0.8 + (widest - 0.8) * math.sqrt(found.message.n_bytes / most) for found in routes]


def drawn(found: Route, line: str, *, width: float, look: Look) -> str:
    """A line in the colour of who sends: what goes up in one stroke, what comes down dashed."""
    message = found.message
    told = (
        f"{_what(message)}: {look.names[message.source]} to {look.names[message.destination]}, "
        f"{readable_bytes(message.n_bytes)}"
    )
    return svg.element(
        "path",
        svg.title(told),
        d=line,
        stroke=look.palette.line(message.source),
        stroke_width=width,
        stroke_opacity=0.85,
        stroke_dasharray=None if message.direction == "forward" else f"{width + 3:.1f} {width + 2:.1f}",
        marker_end=f"url(#to{message.source})",
    )


def _what(message: Message) -> str:
    """`states of h1, rows 0:4`; rows of weights and of sums over scores are none of the layer."""
    content = message.buffer.contents
    if content in ("states", "errors", "partial sums"):
        return f"{content} of {message.layer}, rows {message.rows}"
    return f"{content} of {message.layer}"
