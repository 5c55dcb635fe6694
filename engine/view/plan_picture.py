"""A plan as an SVG picture: layers as bars from the inputs up, machines as colours, messages as lines.

A network of many layers is folded where it repeats (`folds.py`); what is still tall goes on in
further columns (`columns.py`). Of many machines, labels that do not fit are left to the tooltips.

Text only: no drawing library, no tensor, no file.
"""

from __future__ import annotations

from collections.abc import Iterator

from partita.engine.view import boxes, legend, routes, svg
from partita.engine.view.column_picture import ColumnPicture, Placed
from partita.engine.view.columns import Column, columns_for, split
from partita.engine.view.folds import sketched
from partita.engine.view.layout import ranks_of
from partita.engine.view.look import Look
from partita.layers.text import counted
from partita.partitioner.plan import Plan

MARGIN, HEADING, BETWEEN = 28.0, 84.0, 56.0
"""Around everything, for the title, and between columns, in pixels."""
ROOMY = 24.0
"""Pixels that a piece must have for arrow heads of full size."""


def draw_plan(plan: Plan) -> str:
    """The picture of a plan, as the text of an SVG file."""
    return _Picture(plan).text()


class _Picture:
    """Cuts the network into columns, and places them, the title and the legend."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.owned = plan, plan.ownership
        self.bars = boxes.bar_widths(self.owned)
        found = [routes.route(self.owned, message) for message in plan.undivided_messages]
        self.sketch = sketched(self.owned, found)
        stands_for = self.sketch.stands_for
        self.routes = [
            route.renamed(stands_for) for route in found if stands_for[route.consumer] == route.consumer
        ]
        ranks = ranks_of(self.sketch.wiring)
        (whole,) = split(self.sketch.wiring, ranks, 1)
        self.columns = [self._column(whole)]
        top, alone = max(ranks.values()), self.columns[0]
        count = columns_for(top, alone.width, alone.height)
        if count > 1:
            self.columns = [self._column(column) for column in split(self.sketch.wiring, ranks, count)]
        pieces = [self.bars[g.name] / len(self.owned.of(g.name)) for g in plan.graph.computed]
        arrow = svg.ARROW * min(1.0, max(0.4, min(pieces) / ROOMY))
        self.look = Look(tuple(machine.name for machine in plan.cluster.machines), arrow)

    def _column(self, column: Column) -> ColumnPicture:
        mine = {name for name in column.wiring.sources if name not in column.again}
        routes_here = tuple(found for found in self.routes if found.consumer in mine)
        folds = tuple(fold for fold in self.sketch.folds if mine & set(fold.layers))
        return ColumnPicture(Placed(self.owned, column, routes_here, folds, self.bars))

    def text(self) -> str:
        """The whole document."""
        top, body = HEADING + MARGIN, sum(column.width + BETWEEN for column in self.columns) - BETWEEN
        bottom = top + max(column.height for column in self.columns)
        found = legend.Legend(self.plan, self.look)
        beside = found.is_narrow
        x, y = (MARGIN + body + 2 * MARGIN, top + 12) if beside else (MARGIN, bottom + 2 * MARGIN)
        lines = found.lines(body)
        width = max(x + found.width(lines), MARGIN + body, legend.heading_width(self.plan)) + MARGIN
        height = max(bottom, y - 12 + found.height(lines)) + MARGIN
        parts = [
            svg.element("defs", *self.look.definitions()),
            *self._bodies(bottom),
            legend.heading(self.plan, x=MARGIN, y=MARGIN + 18),
            found.drawn(x=x, y=y, lines=lines),
        ]
        return svg.document(
            f"{self.plan.graph.name} over {counted(len(self.plan.cluster), 'machine')}", width, height, parts
        )

    def _bodies(self, bottom: float) -> Iterator[str]:
        left = MARGIN
        for number, column in enumerate(self.columns):
            if len(self.columns) > 1:
                where = bottom - column.height - 14
                yield svg.text(left, where, f"column {number + 1}", size=11, fill=svg.SOFT)
            yield from column.drawn(self.look, left=left, bottom=bottom)
            left += column.width + BETWEEN
