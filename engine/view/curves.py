"""Curves over a number of machines as an SVG picture: a speed-up, predicted or measured. It knows no plan.

Panels with axes of their own lie one below the other. Curves are named where they end; names that would lie
on one another move apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from partita.engine.view import svg
from partita.engine.view.time_axis import round_step

WIDTH, HEIGHT = 620.0, 400.0
"""Of the plot, in pixels."""
LEFT, TOP, BELOW, BETWEEN, MARGIN = 64.0, 112.0, 64.0, 32.0, 28.0
NAME_SIZE, LINE = 12.0, 16.0
"""Size of a curve's name, and from one to the next at least, in pixels."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a7a7a")


@dataclass(frozen=True)
class Curve:
    """A line through points `(x, y)`, in ascending x.

    Args:
        name: written where it ends; "" for a curve that goes with the one before it, in its colour.
        points: at least one.
        dashed: not the main one of its colour.
        dots: at its points, unless it is dashed; without them many points make a line.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    dashed: bool = False
    dots: bool = True


@dataclass(frozen=True)
class Mark:
    """A point that something else says, for example a paper: a ring with words beside it."""

    x: float
    y: float
    words: str


@dataclass(frozen=True)
class Panel:
    """Curves over one pair of axes.

    Args:
        curves: at least one.
        axes: what x and y are.
        ticks: of the x axis.
        marks: points to compare with.
        height: of the plot, in pixels.
        doubling: the x axis goes from the first tick to the last in equal steps of a factor, not from 0;
            at least two ticks, all above 0.
    """

    curves: tuple[Curve, ...]
    axes: tuple[str, str]
    ticks: tuple[float, ...]
    marks: tuple[Mark, ...] = ()
    height: float = HEIGHT
    doubling: bool = False


def draw_curves(title: str, subtitle: str, panels: Sequence[Panel]) -> str:
    """The picture, as the text of an SVG file.

    Args:
        title: above it.
        subtitle: below that.
        panels: at least one.
    """
    named = [svg.text_width(curve.name, size=NAME_SIZE) for panel in panels for curve in panel.curves]
    width = max(LEFT + WIDTH + 14 + max(named) + MARGIN, svg.text_width(subtitle, size=11) + 2 * MARGIN)
    parts = [
        svg.text(MARGIN, MARGIN + 16, title, size=20, font_weight=700),
        svg.text(MARGIN, MARGIN + 36, subtitle, fill=svg.SOFT),
    ]
    bottom = TOP - BETWEEN
    for panel in panels:
        plot = _plot(panel, bottom + BETWEEN)
        parts += [*plot.axes(panel.axes, panel.ticks), *plot.curves(panel.curves), *plot.marks(panel.marks)]
        bottom += BETWEEN + panel.height + BELOW
    return svg.document(title, width, bottom, parts)


def _plot(panel: Panel, edge: float) -> _Plot:
    """Where its points lie; y goes up to a round number."""
    highest = max(y for curve in panel.curves for _, y in curve.points)
    highest = max([highest, *(mark.y for mark in panel.marks)])
    step = round_step(highest / max(4, round(panel.height / 50)))
    left = min(panel.ticks) if panel.doubling else 0.0
    return _Plot(left, max(panel.ticks), step * math.ceil(highest / step - 1e-9), step, edge, panel.height)


@dataclass(frozen=True)
class _Plot:
    """From `(left, 0)` to `(right, top)`, a line at each multiple of `step`; on the page from `edge` down.

    x goes by factors where `left` is not 0.
    """

    left: float
    right: float
    top: float
    step: float
    edge: float
    height: float

    def at(self, x: float, y: float) -> tuple[float, float]:
        share = math.log(x / self.left, self.right / self.left) if self.left else x / self.right
        return LEFT + WIDTH * share, self.edge + self.height * (1 - y / self.top)

    def axes(self, names: tuple[str, str], ticks: Sequence[float]) -> Iterator[str]:
        right, bottom = self.at(self.right, 0)
        for n in range(round(self.top / self.step) + 1):
            y = self.at(self.right, n * self.step)[1]
            yield svg.element("line", x1=LEFT, x2=right, y1=y, y2=y, stroke=svg.FAINT if n else svg.SOFT)
            words = f"{n * self.step:g}"
            yield svg.text(LEFT - 8, y + 4, words, size=11, fill=svg.SOFT, text_anchor="end")
        free = 0.0
        for tick in ticks:
            x, words = self.at(tick, 0)[0], f"{tick:g}"
            yield svg.element("line", x1=x, x2=x, y1=bottom, y2=bottom + 5, stroke=svg.SOFT)
            half = svg.text_width(words, size=11) / 2
            if x - half >= free:
                yield svg.text(x, bottom + 18, words, size=11, fill=svg.SOFT, text_anchor="middle")
                free = x + half + 2
        yield svg.text((LEFT + right) / 2, bottom + 42, names[0], size=12, text_anchor="middle")
        yield svg.text(LEFT, self.edge - 14, names[1], size=12)

    def curves(self, curves: Sequence[Curve]) -> Iterator[str]:
        colours: list[str] = []
        ends: list[tuple[tuple[float, float], str, str]] = []
        for curve in curves:
            if curve.name or not colours:
                colours.append(COLOURS[len(set(colours)) % len(COLOURS)])
            else:
                colours.append(colours[-1])
            places = [self.at(*point) for point in curve.points]
            yield _line(places, colours[-1], dashed=curve.dashed)
            if curve.dots and not curve.dashed:
                for (x, y), (px, py) in zip(places, curve.points, strict=True):
                    told = svg.title(f"{curve.name}: {py:.2f} at {px:g}")
                    yield svg.element("circle", told, cx=x, cy=y, r=3, fill=colours[-1])
            if curve.name:
                ends.append((places[-1], curve.name, colours[-1]))
        ends.sort(key=lambda end: end[0][1])
        reached = 0.0
        for (x, y), name, colour in ends:
            reached = max(y + 4, reached + LINE)
            ink = svg.mixed(colour, "#000000", 0.2)
            yield svg.text(x + 10, reached, name, size=NAME_SIZE, fill=ink, font_weight=600)

    def marks(self, marks: Sequence[Mark]) -> Iterator[str]:
        for mark in marks:
            x, y = self.at(mark.x, mark.y)
            yield svg.element(
                "circle",
                svg.title(mark.words),
                cx=x,
                cy=y,
                r=6,
                fill="none",
                stroke=svg.INK,
                stroke_width=1.6,
            )
            if x - svg.text_width(mark.words, size=11) > LEFT + WIDTH / 4:
                yield svg.text(x - 10, y - 10, mark.words, size=11, text_anchor="end")
            else:
                yield svg.text(x + 10, y + 16, mark.words, size=11)


def _line(places: Sequence[tuple[float, float]], colour: str, *, dashed: bool) -> str:
    path = "L".join(f"{svg.number(x)} {svg.number(y)}" for x, y in places)
    return svg.element(
        "path",
        d=f"M{path}",
        fill="none",
        stroke=colour,
        stroke_width=1.4 if dashed else 2.4,
        stroke_dasharray="5 4" if dashed else None,
        stroke_linejoin="round",
    )
