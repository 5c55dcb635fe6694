"""Where many machines exchange messages with many, one drawing instead of a line for each message.

Between bars a rail: every sender has one line into it and every receiver one out of it. Where a layer is a
map of tiles, or the messages pass other layers by, one broad line for all. Both say how much travels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from partita.engine.view import svg
from partita.engine.view.boxes import Box
from partita.engine.view.palette import HEAD, Palette
from partita.engine.view.routes import Point, Port, Route
from partita.layers.text import counted, readable_bytes

CROWD, PEERS = 30, 5
"""Messages of one edge in one direction, and receivers of each sender, where they become one."""
HEADS = 10
"""Arrow heads under one machine up to which they do not cover one another."""
INSIDE, BACK = 18.0, 13.0
"""Pixels from a bar down to the rail of its own machines, and from there to the one of gradients."""
SIZE, ASIDE, LINE = 11.0, 10.0, 13.0
"""Size of the words beside a rail, how far from it they stand, and from one line to the next, in pixels."""
BROAD = 7.0
"""Width of a line that stands for many, in pixels."""


@dataclass(frozen=True)
class Exchange:
    """All messages of one direction between a layer (below) and its consumer (above).

    Or between the machines of one layer, which is then both.
    """

    below: str
    above: str
    up: bool
    routes: tuple[Route, ...]

    @property
    def inside(self) -> bool:
        """Returns whether it is between the machines of one layer."""
        return self.below == self.above

    @property
    def n_ports(self) -> int:
        """Number of pieces where its lines begin and end."""
        return len({port for route in self.routes for port in (route.start, route.stop)})

    @property
    def words(self) -> str:
        """Number of messages, and what they carry."""
        total = readable_bytes(sum(route.message.n_bytes for route in self.routes))
        way = "forward" if self.up else "backward"
        if self.inside:
            of_machines = f"of its {self.routes[0].message.buffer.contents}"
            way = of_machines if self.routes[0].is_inside else "between its machines"
        return f"{counted(len(self.routes), 'message')} {way}, {total}"

    @property
    def words_width(self) -> float:
        """Room for the words, in pixels."""
        return ASIDE + svg.text_width(self.words, size=SIZE)

    def drawn(
        self, boxes: Mapping[str, Box], lanes: Sequence[Point], palette: Palette, *, broad: bool
    ) -> tuple[str, Point]:
        """Draws a broad line by the lanes between the layers, or a rail; returns it and where words begin."""
        shapes, y = self._broad(boxes, lanes) if broad else self._rail(boxes, palette)
        x = boxes[self.above].edges.right
        return shapes, ((x if broad else max(x, boxes[self.below].edges.right)) + ASIDE, y + 4)

    @property
    def _depth(self) -> float:
        return INSIDE + (0.0 if self.up else BACK)

    def _rail(self, boxes: Mapping[str, Box], palette: Palette) -> tuple[str, float]:
        """Draws a line across, a line into it for each sender, and a line out of it for each receiver."""
        high, low = boxes[self.above].edges.bottom, boxes[self.below].edges.top
        y = high + (self._depth if self.inside else (low - high) * (0.6 if self.up else 0.4))
        total: Counter[tuple[Port, bool]] = Counter()
        for leaves in (True, False):
            for route in self.routes:
                total[route.start if leaves else route.stop, leaves] += route.message.n_bytes
        most, lines, places = max(total.values()), [], []
        for ((layer, machine, side), leaves), n_bytes in total.items():
            box, cell = boxes[layer], boxes[layer].cells[machine]
            edge = box.edge(side)
            x = cell.left + cell.width * (0.33 if (leaves if self.inside else self.up) else 0.67)
            if not leaves:
                edge += palette.arrow if self.up or self.inside else -palette.arrow
            places.append(x)
            told = f"{palette.names[machine]} {'sends' if leaves else 'receives'} {readable_bytes(n_bytes)}"
            d = svg.curve([(x, edge), (x, y)] if leaves else [(x, y), (x, edge)])
            colour, head = (palette.line(machine), None) if leaves else (svg.SOFT, "to")
            width = min(1.0 + 2.5 * math.sqrt(n_bytes / most), max(0.8, cell.width / 9))
            dash = None if self.up else "5 4"
            lines.append(svg.line(d, colour, width, dash=dash, head=head, tooltip=told))
        across = svg.path("M", min(places) - 6, y, "H", max(places) + 6)
        return "".join([*lines, svg.line(across, svg.SOFT, 4, stroke_linecap="round")]), y

    def _broad(self, boxes: Mapping[str, Box], lanes: Sequence[Point]) -> tuple[str, float]:
        above, below = boxes[self.above].edges, boxes[self.below].edges
        aside = -14.0 if self.up else 14.0
        high = (above.x + aside, above.bottom)
        if self.inside:
            x, y = above.x, above.bottom + self._depth - INSIDE / 2
            line = svg.path("M", x - 30, y, "H", x + 30)
        else:
            low = (below.x + aside, below.top)
            points = [low, *lanes, high] if self.up else [high, *lanes[::-1], low]
            x, y = points.pop()
            line = svg.curve([*points, (x, y + (HEAD if self.up else -HEAD))])
            y = (high[1] + min(low[1], high[1] + 60)) / 2 + (7 if self.up else -7)
        dash, head = None if self.up else "7 4", None if self.inside else "many"
        look = {"tooltip": self.words, "stroke_opacity": 0.6}
        return svg.line(line, svg.SOFT, BROAD, dash=dash, head=head, **look), y


def gathered(routes: Sequence[Route], maps: frozenset[str]) -> tuple[list[Route], list[Exchange]]:
    """Splits messages into those that are drawn one by one and those that are drawn together.

    Layers that are `maps` of tiles have no edge at which each machine's lines could end.
    """
    groups: dict[tuple[str, str, bool], list[Route]] = {}
    for found in routes:
        groups.setdefault((*found.ends, found.message.direction == "forward"), []).append(found)
    crowds = {key for key, group in groups.items() if _is_crowd(key[:2], group, maps)}
    single, shared = [], []
    for (below, above, up), group in groups.items():
        # Below one bar lines would cross the rail of the other direction.
        with_a_rail = below == above and group[0].is_inside and (below, above, not up) in crowds
        if (below, above, up) in crowds or with_a_rail:
            shared.append(Exchange(below, above, up, tuple(group)))
        else:
            single += group
    return single, shared


def words_beside(places: Sequence[tuple[Exchange, Point]]) -> Iterator[str]:
    """Writes the words of exchanges to the right of their layers; those of one layer do not touch."""
    reached: dict[str, float] = {}
    for found, (x, y) in sorted(places, key=lambda place: place[1][1]):
        y = reached[found.above] = max(y, reached.get(found.above, 0.0) + LINE)
        yield svg.text(x, y, found.words, size=SIZE, fill=svg.SOFT, stroke="none")


def _is_crowd(ends: tuple[str, str], group: Sequence[Route], maps: frozenset[str]) -> bool:
    """Returns whether messages between two layers in one direction are too many for lines, or cannot end
    anywhere.
    """
    if maps & set(ends):
        return True
    senders = len({found.message.source for found in group})
    heads = max(Counter(found.message.destination for found in group).values())
    if heads > HEADS:
        return True
    in_a_sum = ends[0] == ends[1] and not group[0].is_inside
    return len(group) >= CROWD and len(group) >= PEERS * senders and not in_a_sum
