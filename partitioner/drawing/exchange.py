"""Where many machines exchange states or errors with many, one rail instead of a line for each message.

Every sender has one line into the rail and every receiver one out of it; the rail says how much travels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from partita.partitioner.drawing import svg
from partita.partitioner.drawing.boxes import Box
from partita.partitioner.drawing.routes import Port, Route
from partita.partitioner.table import readable_bytes

CROWD = 30
"""Messages of one edge in one direction from which on they share a rail."""
INSIDE = 18.0
"""How far below a bar the rail of its own machines lies, in pixels."""
LABEL = 190.0
"""Room for the words beside a rail, in pixels."""


@dataclass(frozen=True)
class Exchange:
    """All messages of one direction between a layer (below) and one that listens to it (above).

    Or between the machines of one layer, which is then both.
    """

    below: str
    above: str
    up: bool
    routes: tuple[Route, ...]


def gathered(
    routes: Sequence[Route], passing: frozenset[tuple[str, str]]
) -> tuple[list[Route], list[Exchange]]:
    """Splits lines into those that are drawn one by one and those that share a rail.

    Args:
        routes: all of them.
        passing: pairs of layers between which other layers lie: their lines stay single.
    """
    groups: dict[tuple[tuple[str, str], bool], list[Route]] = {}
    single = []
    for found in routes:
        if found.via in passing or (found.via is None and not found.of_machines):
            single.append(found)
        else:
            ends = found.via or (found.start[0], found.stop[0])
            groups.setdefault((ends, found.message.direction == "up"), []).append(found)
    shared = []
    for ((below, above), up), group in groups.items():
        if len(group) < CROWD:
            single += group
        else:
            shared.append(Exchange(below, above, up, tuple(group)))
    return single, shared


def drawn(found: Exchange, boxes: Mapping[str, Box], machines: Sequence[str]) -> str:
    """The rail, its lines and its words."""
    high, low = boxes[found.above].bottom, boxes[found.below].top
    inside = found.above == found.below
    y = high + (INSIDE if inside else (low - high) * (0.6 if found.up else 0.4))
    sent: dict[Port, int] = {}
    received: dict[Port, int] = {}
    for route in found.routes:
        sent[route.start] = sent.get(route.start, 0) + route.message.n_bytes
        received[route.stop] = received.get(route.stop, 0) + route.message.n_bytes
    most = max([*sent.values(), *received.values()])
    dash = None if found.up else "5 4"
    lines, places = [], []
    for group, leaves in ((sent, True), (received, False)):
        for port, n_bytes in group.items():
            x, edge = _at(boxes, port, leaves if inside else found.up)
            if not leaves:
                edge += svg.ARROW if found.up or inside else -svg.ARROW
            places.append(x)
            what = f"{machines[port[1]]} {'sends' if leaves else 'receives'} {readable_bytes(n_bytes)}"
            lines.append(
                svg.element(
                    "path",
                    svg.title(what),
                    d=svg.points([(x, edge), (x, y)] if leaves else [(x, y), (x, edge)]),
                    stroke=svg.line_colour(port[1]) if leaves else svg.SOFT,
                    stroke_width=1.0 + 2.5 * math.sqrt(n_bytes / most),
                    stroke_dasharray=dash,
                    marker_end=None if leaves else "url(#to)",
                )
            )
    rail = svg.element(
        "path",
        d=f"M{svg.number(min(places) - 6)} {svg.number(y)}H{svg.number(max(places) + 6)}",
        stroke=svg.SOFT,
        stroke_width=4,
        stroke_linecap="round",
    )
    return "".join([*lines, rail, _words(found, boxes[found.above], boxes[found.below], y)])


def _at(boxes: Mapping[str, Box], port: Port, up: bool) -> tuple[float, float]:
    left, right = boxes[port[0]].spans[port[1]]
    y = boxes[port[0]].top if port[2] == "top" else boxes[port[0]].bottom
    return left + (right - left) * (0.33 if up else 0.67), y


def _words(found: Exchange, above: Box, below: Box, y: float) -> str:
    total = readable_bytes(sum(route.message.n_bytes for route in found.routes))
    way = "up" if found.up else "down"
    if found.above == found.below:
        way = f"of its {found.routes[0].message.buffer.partition('.')[2]}"
    what = f"{len(found.routes)} messages {way}, {total}"
    x = max(above.right, below.right) + 10
    return svg.text(x, y + 4, what, size=11, fill=svg.SOFT, stroke="none")
