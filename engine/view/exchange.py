"""Where many machines exchange states or errors with many, one drawing instead of a line for each message.

Between bars a rail: every sender has one line into it and every receiver one out of it. Where a layer is a
map of tiles, or the messages pass other layers by, one broad line for all. Both say how much travels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from partita.engine.view import svg
from partita.engine.view.boxes import Box
from partita.engine.view.look import HEAD, Look
from partita.engine.view.routes import Point, Port, Route
from partita.layers.text import counted
from partita.partitioner.text import readable_bytes

CROWD, PEERS = 30, 5
"""Messages of one edge in one direction, and receivers of each sender, where they become one."""
INSIDE, BACK = 18.0, 13.0
"""How far below a bar the rail of its own machines lies, and how much lower that of what comes down."""
SIZE, ASIDE = 11.0, 10.0
"""Of the words beside a rail, and how far from it they stand, in pixels."""
BROAD = 7.0
"""Width of a line that stands for many, in pixels."""


@dataclass(frozen=True)
class Exchange:
    """All messages of one direction between a layer (below) and one that listens to it (above).

    Or between the machines of one layer, which is then both.
    """

    below: str
    above: str
    up: bool
    routes: tuple[Route, ...]

    @property
    def inside(self) -> bool:
        """Whether it is between the machines of one layer."""
        return self.below == self.above

    @property
    def ports(self) -> set[Port]:
        """Where its lines begin and end."""
        return {port for route in self.routes for port in (route.start, route.stop)}

    @property
    def words(self) -> str:
        """How many messages there are, and how much they carry."""
        total = readable_bytes(sum(route.message.n_bytes for route in self.routes))
        way = "up" if self.up else "down"
        if self.inside and self.routes[0].of_machines:
            way = f"of its {self.routes[0].message.buffer.contents}"
        elif self.inside:
            way = "between its machines"
        return f"{counted(len(self.routes), 'message')} {way}, {total}"


def gathered(routes: Sequence[Route], maps: frozenset[str]) -> tuple[list[Route], list[Exchange]]:
    """Splits messages into those that are drawn one by one and those that are drawn together.

    Args:
        routes: all of them.
        maps: layers that are maps of tiles: they have no edge at which each machine's lines could end.
    """
    groups: dict[tuple[str, str, bool], list[Route]] = {}
    for found in routes:
        below, above = found.via or (found.start[0], found.stop[0])
        groups.setdefault((below, above, found.message.direction == "forward"), []).append(found)
    crowds = {key for key, group in groups.items() if _is_crowd(key[:2], group, maps)}
    single, shared = [], []
    for (below, above, up), group in groups.items():
        # Below one bar lines would cross the rail of the other direction.
        with_a_rail = below == above and group[0].of_machines and (below, above, not up) in crowds
        if (below, above, up) in crowds or with_a_rail:
            shared.append(Exchange(below, above, up, tuple(group)))
        else:
            single += group
    return single, shared


def _is_crowd(ends: tuple[str, str], group: Sequence[Route], maps: frozenset[str]) -> bool:
    """Whether messages between two layers in one direction are too many for lines, or cannot end anywhere."""
    if maps & set(ends):
        return True
    senders = len({found.message.source for found in group})
    told = ends[0] == ends[1] and not group[0].of_machines
    return len(group) >= CROWD and len(group) >= PEERS * senders and not told


def rail(found: Exchange, boxes: Mapping[str, Box], look: Look) -> str:
    """A line across, one line into it for each sender, and one out of it for each receiver."""
    high, low = boxes[found.above].bottom, boxes[found.below].top
    y = high + (_below_bar(found) if found.inside else (low - high) * (0.6 if found.up else 0.4))
    sent: dict[Port, int] = {}
    received: dict[Port, int] = {}
    for route in found.routes:
        sent[route.start] = sent.get(route.start, 0) + route.message.n_bytes
        received[route.stop] = received.get(route.stop, 0) + route.message.n_bytes
    most = max([*sent.values(), *received.values()])
    lines, places = [], []
    for group, leaves in ((sent, True), (received, False)):
        for port, n_bytes in group.items():
            x, edge, room = _at(boxes, port, leaves if found.inside else found.up)
            if not leaves:
                edge += look.arrow if found.up or found.inside else -look.arrow
            places.append(x)
            lines.append(
                svg.element(
                    "path",
                    svg.title(f"{look.names[port[1]]} {_did(leaves)} {readable_bytes(n_bytes)}"),
                    d=svg.points([(x, edge), (x, y)] if leaves else [(x, y), (x, edge)]),
                    stroke=look.palette.line(port[1]) if leaves else svg.SOFT,
                    stroke_width=min(1.0 + 2.5 * math.sqrt(n_bytes / most), max(0.8, room / 9)),
                    stroke_dasharray=None if found.up else "5 4",
                    marker_end=None if leaves else "url(#to)",
                )
            )
    line = f"M{svg.number(min(places) - 6)} {svg.number(y)}H{svg.number(max(places) + 6)}"
    drawn = svg.element("path", d=line, stroke=svg.SOFT, stroke_width=4, stroke_linecap="round")
    x = max(boxes[found.above].right, boxes[found.below].right)
    return "".join([*lines, drawn, _words(found, x, y)])


def words_width(found: Exchange) -> float:
    """Room for the words beside a rail, in pixels."""
    return ASIDE + svg.text_width(found.words, size=SIZE)


def _below_bar(found: Exchange) -> float:
    return INSIDE + (0.0 if found.up else BACK)


def _did(leaves: bool) -> str:
    return "sends" if leaves else "receives"


def _at(boxes: Mapping[str, Box], port: Port, up: bool) -> tuple[float, float, float]:
    """Where a port is: x and y, and how wide the piece is."""
    left, right = boxes[port[0]].span(port[1])
    y = boxes[port[0]].top if port[2] == "top" else boxes[port[0]].bottom
    return left + (right - left) * (0.33 if up else 0.67), y, right - left


def broad(found: Exchange, boxes: Mapping[str, Box], lanes: Sequence[Point]) -> str:
    """One line for all, by the lanes between the two layers if there are any."""
    above, below = boxes[found.above], boxes[found.below]
    aside = -14.0 if found.up else 14.0
    high = ((above.left + above.right) / 2 + aside, above.bottom)
    if found.inside:
        x, y = (above.left + above.right) / 2, above.bottom + _below_bar(found) - INSIDE / 2
        line = f"M{svg.number(x - 30)} {svg.number(y)}H{svg.number(x + 30)}"
    else:
        low = ((below.left + below.right) / 2 + aside, below.top)
        points = [low, *lanes, high]
        start, *middle, stop = points if found.up else points[::-1]
        line = svg.points([start, *middle, (stop[0], stop[1] + (HEAD if found.up else -HEAD))])
        y = (high[1] + min(low[1], high[1] + 60)) / 2 + (7 if found.up else -7)
    drawn = svg.element(
        "path",
        svg.title(found.words),
        d=line,
        stroke=svg.SOFT,
        stroke_width=BROAD,
        stroke_opacity=0.6,
        stroke_dasharray=None if found.up else "7 4",
        marker_end=None if found.inside else "url(#many)",
    )
    return drawn + _words(found, above.right, y)


def _words(found: Exchange, x: float, y: float) -> str:
    return svg.text(x + ASIDE, y + 4, found.words, size=SIZE, fill=svg.SOFT, stroke="none")
