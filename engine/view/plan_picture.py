"""A plan as an SVG picture: layers as bars from the inputs up, machines as colours, messages as lines.

A network of many layers is folded where it repeats (`folds`); what is still tall goes on in further columns.
Of many machines, labels that do not fit are left to the tooltips. Text only: no drawing library, no file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from partita.engine.view import boxes, svg
from partita.engine.view.boxes import Box
from partita.engine.view.exchange import gathered, words_beside
from partita.engine.view.folds import Fold, sketched
from partita.engine.view.layout import Column, arrange, columns_for, ranks_of, split
from partita.engine.view.legend import Legend, heading, heading_width
from partita.engine.view.palette import Palette
from partita.engine.view.routes import Point, Route, drawn, line_ends, line_widths, route
from partita.layers.text import counted
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.plan import Plan

Lanes: TypeAlias = Mapping[tuple[str, str], Sequence[Point]]
"""The ends of the lanes, from below, by which an edge passes other layers."""
MARGIN, HEADING, BETWEEN = 28.0, 84.0, 56.0
"""Around everything, for the title, and between columns, in pixels."""
ROOMY = 24.0
"""Pixels that a piece must have for arrow heads of full size."""
LANE = 12.0
"""Half the width of the lane in which an edge passes other layers, in pixels."""
QUIET = 24.0
"""Between ranks between which nothing travels, in pixels."""
BRACKET = 78.0
"""Room for the words of a fold, in pixels."""


def draw_plan(plan: Plan) -> str:
    """Draws a plan, as the text of an SVG file."""
    owned, bars = plan.ownership, boxes.bar_widths(plan.ownership)
    every = [route(owned, message) for message in plan.undivided_messages]
    sketch = sketched(owned, every)
    names = sketch.stands_for
    routes = [found.renamed(names) for found in every if names[found.ends[1]] == found.ends[1]]
    ranks = ranks_of(sketch.wiring)

    def columns(count: int) -> list[_ColumnPicture]:
        found = split(sketch.wiring, ranks, count)
        return [_ColumnPicture(owned, column, routes, sketch.folds, bars) for column in found]

    (alone,) = placed = columns(1)
    count = columns_for(max(ranks.values()), alone.width, alone.height)
    if count > 1:
        placed = columns(count)
    pieces = [bars[grid.name] / len(owned.of(grid.name)) for grid in plan.graph.computed]
    arrow = svg.ARROW * min(1.0, max(0.4, min(pieces) / ROOMY))
    return _document(plan, placed, Palette(tuple(m.name for m in plan.cluster.machines), arrow))


def _document(plan: Plan, columns: Sequence[_ColumnPicture], palette: Palette) -> str:
    """Places columns, title and legend."""
    top, body = HEADING + MARGIN, sum(column.width + BETWEEN for column in columns) - BETWEEN
    bottom = top + max(column.height for column in columns)
    legend = Legend(plan, palette, body)
    beside = MARGIN + body + 2 * MARGIN, top + 12
    x, y = beside if legend.is_narrow else (MARGIN, bottom + 2 * MARGIN)
    width = max(x + legend.width, MARGIN + body, heading_width(plan)) + MARGIN
    height = max(bottom, y - 12 + legend.height) + MARGIN
    parts, left = [svg.element("defs", *palette.definitions())], MARGIN
    for number, column in enumerate(columns):
        if len(columns) > 1:
            above = bottom - column.height - 14
            parts.append(svg.text(left, above, f"column {number + 1}", size=11, fill=svg.SOFT))
        parts += column.drawn(palette, left=left, bottom=bottom)
        left += column.width + BETWEEN
    parts += [heading(plan, x=MARGIN, y=MARGIN + 18), legend.drawn(x=x, y=y)]
    return svg.document(
        f"{plan.graph.name} over {counted(len(plan.cluster), 'machine')}", width, height, parts
    )


class _ColumnPicture:
    """Places the layers of a column once, from its left upper corner on."""

    def __init__(
        self,
        owned: Ownership,
        column: Column,
        routes: Sequence[Route],
        folds: Sequence[Fold],
        bars: Mapping[str, float],
    ) -> None:
        mine = column.wiring.sources.keys() - column.again.keys()
        self.owned, self.column, self.bars = owned, column, bars
        self.names, ranks = tuple(column.wiring.sources), column.ranks
        self.pieces = {name: owned.of(name) for name in self.names}
        self.folds = [fold for fold in folds if mine & set(fold.layers)]
        self.maps = frozenset(name for name in self.names if boxes.is_map(self.pieces[name]))
        self.single, self.shared = gathered([r for r in routes if r.ends[1] in mine], self.maps)
        self.most = max((r.message.n_bytes for r in routes if r.ends[1] in mine), default=1)
        half = {name: bars[name] / 2 for name in self.names}
        neighbours = Counter(ranks[name] for name in self.names if name not in column.wiring.light)
        words = dict.fromkeys(self.names, 0.0)  # room for them, where a map has a layer beside it
        for crowd in self.shared:
            if crowd.above in self.maps and neighbours[ranks[crowd.above]] > 1:
                words[crowd.above] = max(words[crowd.above], crowd.words_width)
        reach = {n: (boxes.label_width(owned.graph[n]) + half[n], half[n] + words[n]) for n in self.names}
        self.centres = arrange(column.wiring, ranks, reach, lane=LANE)
        spread = [
            (centre, *(reach[name] if ranks[name] == rank else (LANE, LANE)))
            for (name, rank), centre in self.centres.items()
        ]
        self.left = (BRACKET if self.folds else 0.0) - min(centre - left for centre, left, _ in spread)
        beside = max((crowd.words_width for crowd in self.shared if not words[crowd.above]), default=0.0)
        self.width = max(centre + right for centre, _, right in spread) + self.left + beside
        self.heights = [boxes.BAR] * (max(ranks.values()) + 1)
        for name, pieces in self.pieces.items():
            self.heights[ranks[name]] = max(self.heights[ranks[name]], boxes.height_of(pieces))
        self.gaps = self._gaps()
        self.height = sum(self.heights) + sum(self.gaps)

    def _gaps(self) -> list[float]:
        """Returns the gap above each rank, from the lowest: wider where more lines run."""
        ranks, crowd = self.column.ranks, [0] * len(self.heights)
        ends = [(found.ends, 1) for found in self.single]
        for found in self.shared:
            is_broad = self.maps & {found.below, found.above}
            ends.append(((found.below, found.above), 3 if is_broad else found.n_ports))
        for (below, above), lines in ends:
            for rank in range(min(ranks[below], ranks[above] - 1), ranks[above]):
                crowd[rank] += lines
        return [min(110.0, 34.0 + 9.0 * count**0.5) if count else QUIET for count in crowd[:-1]]

    def drawn(self, palette: Palette, *, left: float, bottom: float) -> Iterator[str]:
        """Draws flows behind, then messages, then bars."""
        tops, y = [], bottom
        for height, gap in zip(self.heights, [*self.gaps, 0.0], strict=True):
            tops.append(y - height)
            y -= height + gap
        placed, graph = {}, self.owned.graph
        for name, pieces in self.pieces.items():
            rank = self.column.ranks[name]
            top = tops[rank] + (self.heights[rank] - boxes.height_of(pieces)) / 2
            centre = self.centres[name, rank] + self.left + left
            placed[name] = boxes.place(graph[name], pieces, centre=centre, top=top, width=self.bars[name])
        lanes = {
            (source, name): [
                (self.centres[source, rank] + self.left + left, y)
                for rank in range(self.column.ranks[source] + 1, self.column.ranks[name])
                for y in (tops[rank] + self.heights[rank], tops[rank])
            ]
            for name, sources in self.column.wiring.sources.items()
            for source in sources
        }
        yield svg.element("g", *self._flows(placed, lanes), fill=svg.FAINT, fill_opacity=0.75)
        yield svg.element("g", *self._messages(placed, lanes, palette), fill="none", stroke_linecap="butt")
        for name, box in placed.items():
            again = self.column.again.get(name)
            yield box.drawn(palette) if again is None else box.drawn_again(palette, column=again)
        for fold in self.folds:
            yield _bracket(fold, [placed[name] for name in fold.layers if name in placed])

    def _flows(self, placed: Mapping[str, Box], lanes: Lanes) -> Iterator[str]:
        """Draws a pale band behind each edge of the network, from bar to bar."""
        for (source, name), points in lanes.items():
            below, above = placed[source].edges, placed[name].edges
            lefts = [(x - LANE / 2, y) for x, y in points]
            rights = [(x + LANE / 2, y) for x, y in points]
            up = svg.curve([(below.left, below.top), *lefts, (above.left, above.bottom)])
            down = svg.curve([(above.right, above.bottom), *rights[::-1], (below.right, below.top)])
            yield svg.element("path", d=f"{up}L{down[1:]}Z")

    def _messages(self, placed: Mapping[str, Box], lanes: Lanes, palette: Palette) -> Iterator[str]:
        places = line_ends(self.single, placed, palette)
        widths = line_widths(self.single, most=self.most)
        for found, width, ends in zip(self.single, widths, places, strict=True):
            yield drawn(found, ends, lanes[found.via] if found.via else (), width, palette)
        words = []
        for crowd in self.shared:
            passed = lanes.get((crowd.below, crowd.above), ())
            broad = bool(passed or self.maps & {crowd.below, crowd.above})
            shapes, place = crowd.drawn(placed, passed, palette, broad=broad)
            words.append((crowd, place))
            yield shapes
        yield from words_beside(words)


def _bracket(fold: Fold, block: Sequence[Box]) -> str:
    """Writes to the left of a fold's layers how many times they come."""
    x = min(box.edges.left - boxes.label_width(box.grid) for box in block) - 6
    top, bottom = min(box.edges.top for box in block), max(box.edges.bottom for box in block)
    middle, last = (top + bottom) / 2 - 4, svg.shortened(fold.last, most=10)
    d = svg.path("M", x, top, "h-8", "V", bottom, "h8")
    return svg.element(
        "g",
        svg.element("path", d=d, fill="none", stroke=svg.SOFT, stroke_width=1.6),
        svg.text(x - 15, middle + 1, f"{fold.times} ×", size=16, font_weight=700, text_anchor="end"),
        svg.text(x - 15, middle + 15, "the same", size=10.5, fill=svg.SOFT, text_anchor="end"),
        svg.text(x - 15, middle + 28, f"to {last}", size=9.5, fill=svg.SOFT, text_anchor="end"),
        tooltip=f"{fold}; their cuts and messages are the same too",
    )
