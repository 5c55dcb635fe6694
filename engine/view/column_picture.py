"""One column of the picture of a plan: flows behind, then messages, then bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from partita.engine.view import boxes, exchange, routes, svg
from partita.engine.view.boxes import Box
from partita.engine.view.columns import Column
from partita.engine.view.folds import Fold
from partita.engine.view.layout import arrange
from partita.engine.view.look import Look
from partita.engine.view.routes import Point, Route
from partita.partitioner.assign.ownership import Ownership

LANE = 12.0
"""Half the width of the lane in which an edge passes other layers, in pixels."""
QUIET = 24.0
"""Between ranks between which nothing travels, in pixels."""
BRACKET = 78.0
"""Room for what is said of a fold, in pixels."""


@dataclass(frozen=True)
class Placed:
    """What a column shows: who owns what, its layers, their messages, folds, and the widths of all bars."""

    owned: Ownership
    column: Column
    routes: tuple[Route, ...]
    folds: tuple[Fold, ...]
    widths: Mapping[str, float]


class ColumnPicture:
    """Places everything once, from the left upper corner of the column on."""

    def __init__(self, placed: Placed) -> None:
        self.owned, self.column, self.folds = placed.owned, placed.column, placed.folds
        self.names = tuple(placed.column.wiring.sources)
        self.graph, self.routes, self.bars = placed.owned.graph, placed.routes, placed.widths
        reach = {
            name: (boxes.label_width(self.graph[name]) + self.bars[name] / 2, self.bars[name] / 2)
            for name in self.names
        }
        self.layout = arrange(self.column.wiring, self.column.ranks, reach, lane=LANE)
        self.maps = frozenset(name for name in self.names if boxes.is_map(self.owned.of(name)))
        self.single, self.shared = exchange.gathered(self.routes, self.maps)
        narrow = LANE, LANE
        spread = [
            (centre, *(reach[name] if self.column.ranks[name] == rank else narrow))
            for (name, rank), centre in self.layout.centres.items()
        ]
        self.left = (BRACKET if self.folds else 0.0) - min(centre - left for centre, left, _ in spread)
        words = max(map(exchange.words_width, self.shared), default=0.0)
        self.width = max(centre + right for centre, _, right in spread) + self.left + words
        self.heights = self._heights()
        self.gaps = self._gaps()
        self.height = sum(self.heights) + sum(self.gaps)

    def _heights(self) -> list[float]:
        """Of each rank, from the lowest."""
        found = [boxes.BAR] * (max(self.column.ranks.values()) + 1)
        for name in self.names:
            rank = self.column.ranks[name]
            found[rank] = max(found[rank], boxes.height_of(self.owned.of(name)))
        return found

    def _gaps(self) -> list[float]:
        """Above each rank, from the lowest: ranks lie further apart where more lines run between them."""
        ranks, crowd = self.column.ranks, [0] * len(self.heights)
        ends = [(found.via or (found.consumer, found.consumer), 1) for found in self.single]
        for found in self.shared:
            is_broad = self.maps & {found.below, found.above}
            ends.append(((found.below, found.above), 3 if is_broad else len(found.ports)))
        for (below, above), lines in ends:
            for rank in range(min(ranks[below], ranks[above] - 1), ranks[above]):
                crowd[rank] += lines
        return [min(110.0, 34.0 + 9.0 * count**0.5) if count else QUIET for count in crowd[:-1]]

    def _placed(self, bottom: float, left: float) -> tuple[list[float], dict[str, Box]]:
        tops, y = [], bottom
        for height, gap in zip(self.heights, [*self.gaps, 0.0], strict=True):
            tops.append(y - height)
            y -= height + gap
        placed = {}
        for name in self.names:
            rank, pieces = self.column.ranks[name], self.owned.of(name)
            middle = tops[rank] + (self.heights[rank] - boxes.height_of(pieces)) / 2
            placed[name] = boxes.place(
                self.graph[name],
                pieces,
                centre=self.layout.centres[name, rank] + self.left + left,
                top=middle,
                width=self.bars[name],
            )
        return tops, placed

    def drawn(self, look: Look, *, left: float, bottom: float) -> Iterator[str]:
        """From the back to the front."""
        tops, placed = self._placed(bottom, left)
        lanes = {
            (source, name): [
                point
                for item in self.layout.passage(source, name)
                for x in [self.layout.centres[item] + self.left + left]
                for point in ((x, tops[item[1]] + self.heights[item[1]]), (x, tops[item[1]]))
            ]
            for name, sources in self.column.wiring.sources.items()
            for source in sources
        }
        yield svg.element("g", *self._flows(placed, lanes), fill=svg.FAINT, fill_opacity=0.75)
        yield svg.element("g", *self._messages(placed, lanes, look), fill="none", stroke_linecap="butt")
        for name in self.names:
            pieces = self.owned.of(name)
            if name in self.column.again:
                column = self.column.again[name]
                yield boxes.drawn_again(placed[name], pieces, look, column=column)
            else:
                yield boxes.drawn(placed[name], pieces, look)
        for fold in self.folds:
            yield self._bracket(fold, placed)

    def _flows(
        self, placed: Mapping[str, Box], lanes: Mapping[tuple[str, str], Sequence[Point]]
    ) -> Iterator[str]:
        """For each edge of the network a pale band behind it, from bar to bar."""
        for (source, name), points in lanes.items():
            below, above = placed[source], placed[name]
            lefts = [
                (below.left, below.top),
                *((x - LANE / 2, y) for x, y in points),
                (above.left, above.bottom),
            ]
            rights = [
                (below.right, below.top),
                *((x + LANE / 2, y) for x, y in points),
                (above.right, above.bottom),
            ]
            line = svg.points(lefts) + "L" + svg.points(rights[::-1])[1:] + "Z"
            yield svg.element("path", d=line)

    def _messages(
        self, placed: Mapping[str, Box], lanes: Mapping[tuple[str, str], Sequence[Point]], look: Look
    ) -> Iterator[str]:
        places = routes.ends(self.single, placed, look)
        widths = routes.widths(self.single, most=max((r.message.n_bytes for r in self.routes), default=1))
        for found, width, (start, stop) in zip(self.single, widths, places, strict=True):
            line = routes.path(found, start, stop, lanes[found.via] if found.via else ())
            yield routes.drawn(found, line, width=width, look=look)
        for crowd in self.shared:
            passed = lanes.get((crowd.below, crowd.above), ())
            if passed or placed[crowd.below].is_map or placed[crowd.above].is_map:
                yield exchange.broad(crowd, placed, passed)
            else:
                yield exchange.rail(crowd, placed, look)

    def _bracket(self, fold: Fold, placed: Mapping[str, Box]) -> str:
        """To the left of a fold's layers how many times they come."""
        block = [placed[name] for name in fold.layers if name in placed]
        x = min(box.left - boxes.label_width(box.grid) for box in block) - 6
        top, bottom = min(box.top for box in block), max(box.bottom for box in block)
        line = f"M{svg.number(x)} {svg.number(top)}h-8V{svg.number(bottom)}h8"
        middle, last = (top + bottom) / 2 - 4, svg.shortened(fold.last, most=10)
        return svg.element(
            "g",
            svg.title(f"{fold}; their cuts and messages are the same too"),
            svg.element("path", d=line, fill="none", stroke=svg.SOFT, stroke_width=1.6),
            svg.text(x - 15, middle + 1, f"{fold.times} ×", size=16, font_weight=700, text_anchor="end"),
            svg.text(x - 15, middle + 15, "the same", size=10.5, fill=svg.SOFT, text_anchor="end"),
            svg.text(x - 15, middle + 28, f"to {last}", size=9.5, fill=svg.SOFT, text_anchor="end"),
        )
