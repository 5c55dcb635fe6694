"""A plan as an SVG picture: layers as bars from the inputs up, machines as colours, messages as lines.

Text only: no drawing library, no tensor, no file. The parts are in `drawing/`.
"""

from __future__ import annotations

from collections.abc import Iterable

from partita.partitioner.bare_plan import BarePlan
from partita.partitioner.drawing import boxes, exchange, legend, routes, svg
from partita.partitioner.drawing.boxes import BAR, Box
from partita.partitioner.drawing.layout import Layout, arrange
from partita.partitioner.drawing.routes import Point, Route

MARGIN, HEADING = 28.0, 84.0
LANE = 12.0
"""Half the width of the lane in which an edge passes other layers, in pixels."""


def draw_plan(plan: BarePlan) -> str:
    """The picture of a plan, as the text of an SVG file."""
    return _Picture(plan).text()


class _Picture:
    """Places everything once, then writes it from the back to the front: flows, messages, bars, words."""

    def __init__(self, plan: BarePlan) -> None:
        self.plan, self.graph, self.owned = plan, plan.graph, plan.ownership
        self.machines = tuple(machine.name for machine in plan.cluster.machines)
        self.routes = [routes.route(plan.ownership, message) for message in plan.joined_messages]
        self.bars = boxes.bar_widths(self.owned)
        reach = {
            g.name: (boxes.label_width(g) + self.bars[g.name] / 2, self.bars[g.name] / 2)
            for g in self.graph.grids
        }
        self.layout: Layout = arrange(self.graph, reach, lane=LANE)
        passing = frozenset(
            (source, grid.name)
            for grid in self.graph.grids
            for source in grid.sources
            if self.layout.passage(source, grid.name)
        )
        self.single, self.shared = exchange.gathered(self.routes, passing)
        ranks, narrow = self.layout.ranks, (LANE, LANE)
        spread = [
            (centre, *(reach[name] if ranks[name] == rank else narrow))
            for (name, rank), centre in self.layout.centres.items()
        ]
        self.left = MARGIN - min(centre - left for centre, left, _ in spread)
        words = exchange.LABEL if self.shared else 0.0
        self.right = max(centre + right for centre, _, right in spread) + self.left + words
        self.tops = self._tops()
        self.boxes = {g.name: self._box(g.name) for g in self.graph.grids}

    def _box(self, name: str) -> Box:
        rank = self.layout.ranks[name]
        return boxes.place(
            self.graph[name],
            self.owned.of(name),
            centre=self.layout.centres[name, rank] + self.left,
            top=self.tops[rank],
            width=self.bars[name],
        )

    def _tops(self) -> list[float]:
        """The y of each rank, from the lowest; ranks lie further apart where more lines run between them."""
        ranks, crowd = self.layout.ranks, [0] * (max(self.layout.ranks.values()) + 1)
        for found in self.routes:
            consumer = found.via[1] if found.via else found.start[0]
            for rank in range(ranks[found.via[0]] if found.via else ranks[consumer] - 1, ranks[consumer]):
                crowd[rank] += 1
        gaps = [min(110.0, 34.0 + 9.0 * count**0.5) for count in crowd]
        tops, y = [], HEADING + MARGIN
        for rank in reversed(range(len(gaps))):
            tops.append(y)
            y += BAR + gaps[rank - 1]
        return tops[::-1]

    def text(self) -> str:
        """The whole document."""
        body = self.right + 2 * MARGIN
        width = max(body + legend.WIDTH, legend.heading_width(self.plan)) + MARGIN
        height = max(self.tops[0] + BAR, HEADING + legend.height(self.plan)) + MARGIN
        parts = [
            svg.element("defs", *self._arrows()),
            svg.element("g", *self._flows(), fill=svg.FAINT, fill_opacity=0.75),
            svg.element("g", *self._messages(), fill="none", stroke_linecap="butt"),
            *(
                boxes.drawn(self.boxes[g.name], self.owned.of(g.name), self.machines)
                for g in self.graph.grids
            ),
            legend.heading(self.plan, x=MARGIN, y=MARGIN + 18),
            legend.legend(self.plan, x=body, y=HEADING + MARGIN + 12),
        ]
        return svg.document(f"{self.graph.name} over {len(self.machines)} machines", width, height, parts)

    def _lanes(self, source: str, consumer: str) -> list[tuple[Point, Point]]:
        """The lower and upper end of each lane on the way, from below."""
        return [
            ((x, self.tops[item[1]] + BAR), (x, self.tops[item[1]]))
            for item in self.layout.passage(source, consumer)
            for x in [self.layout.centres[item] + self.left]
        ]

    def _flows(self) -> Iterable[str]:
        """For each edge of the network a pale band behind it, from bar to bar."""
        for grid in self.graph.grids:
            for source in dict.fromkeys(grid.sources):
                below, above = self.boxes[source], self.boxes[grid.name]
                lanes = [point for lane in self._lanes(source, grid.name) for point in lane]
                lefts = [
                    (below.left, below.top),
                    *((x - LANE / 2, y) for x, y in lanes),
                    (above.left, above.bottom),
                ]
                rights = [
                    (below.right, below.top),
                    *((x + LANE / 2, y) for x, y in lanes),
                    (above.right, above.bottom),
                ]
                line = svg.points(lefts) + "L" + svg.points(rights[::-1])[1:] + "Z"
                yield svg.element("path", d=line)

    def _messages(self) -> Iterable[str]:
        places = routes.ends(self.single, self.boxes)
        for found, width, (start, stop) in zip(self.single, routes.widths(self.single), places, strict=True):
            line = routes.path(found, start, stop, self._passed(found))
            yield routes.drawn(found, line, width=width, machines=self.machines)
        for crowd in self.shared:
            yield exchange.drawn(crowd, self.boxes, self.machines)

    def _passed(self, found: Route) -> list[tuple[Point, Point]]:
        return self._lanes(*found.via) if found.via else []

    def _arrows(self) -> Iterable[str]:
        fills = {f"to{m}": svg.line_colour(m) for m in range(len(self.machines))} | {"to": svg.SOFT}
        return [svg.arrow(name, fill) for name, fill in fills.items()]
