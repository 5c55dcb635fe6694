"""Curves over a number of machines or over time: a speed-up, an accuracy, predicted or measured.

Panels with axes of their own lie one below the other. Curves are named where they end; names that would lie
on one another move apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from partita.engine.view import svg
from partita.engine.view.canvas import MARGIN, PALETTE, Canvas, canvas

WIDTH, HEIGHT = 620.0, 400.0
"""Pixels of a plot."""
LEFT, TOP, BELOW, BETWEEN = 64.0, 112.0, 64.0, 32.0
NAME_SIZE, LINE = 12.0, 16.0
"""Size of a curve's name, and pixels from one name to the next at least."""
LONGEST = 48
"""Characters of a curve's name."""


@dataclass(frozen=True)
class Curve:
    """A line through at least one point `(x, y)`, in ascending x.

    The name is written where the line ends; a curve without a name has the colour of the one before it.
    Dots mark the points, unless the line is dashed.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    dashed: bool = False
    dots: bool = True


@dataclass(frozen=True)
class Mark:
    """A point that another source reports, for example a paper: a ring with words beside it."""

    x: float
    y: float
    words: str


@dataclass(frozen=True)
class Panel:
    """At least one curve over a pair of axes with these labels; the ticks are of the x axis.

    With `doubling` the x axis goes from the first tick to the last in equal steps of a factor, not from 0:
    at least two ticks, all above 0. The height is in pixels of the plot.
    """

    curves: tuple[Curve, ...]
    axes: tuple[str, str]
    ticks: tuple[float, ...]
    marks: tuple[Mark, ...] = ()
    height: float = HEIGHT
    doubling: bool = False


def round_ticks(stop: float, *, most: int = 9) -> tuple[float, ...]:
    """Returns at most so many steps of 1, 2 or 5 times a power of ten from 0 on, up to `stop`."""
    return tuple(float(tick) for tick in _beyond(stop, most) if tick <= stop * (1 + 1e-9))


def _beyond(stop: float, most: int) -> Sequence[float]:
    """Returns round ticks of which the last is not below `stop`."""
    ticks: Sequence[float] = MaxNLocator(most, steps=[1, 2, 5, 10]).tick_values(0, stop)
    return ticks


def draw_curves(title: str, subtitle: str, panels: Sequence[Panel]) -> str:
    """Draws at least one panel, as the text of an SVG file."""
    names = [svg.shortened(curve.name, most=LONGEST) for panel in panels for curve in panel.curves]
    right = LEFT + WIDTH + 14 + max(svg.text_width(name, size=NAME_SIZE) for name in names)
    width = max(right, svg.text_width(subtitle) + MARGIN) + MARGIN
    height = TOP - BETWEEN + sum(BETWEEN + panel.height + BELOW for panel in panels)
    with canvas(title, width, height) as picture:
        picture.heading(title, subtitle)
        top = TOP
        for panel in panels:
            _panel(picture, panel, top)
            top += panel.height + BELOW + BETWEEN
    return picture.svg


def _panel(picture: Canvas, panel: Panel, top: float) -> None:
    axes = picture.axes(LEFT, top, WIDTH, panel.height)
    _limits(axes, panel)
    colours: list[str] = []
    ends: list[tuple[float, float, str, str]] = []
    for curve in panel.curves:
        fresh = PALETTE[len(set(colours)) % len(PALETTE)]
        colours.append(colours[-1] if colours and not curve.name else fresh)
        if curve.name:
            ends.append((*_pixels(picture, axes, *curve.points[-1]), curve.name, colours[-1]))
        xs, ys = zip(*curve.points, strict=True)
        look: dict[str, Any] = {"color": colours[-1], "clip_on": False}
        axes.plot(xs, ys, "--" if curve.dashed else "-", linewidth=1.4 if curve.dashed else 2.4, **look)
        if curve.dots and not curve.dashed:
            (dots,) = axes.plot(xs, ys, "o", markeredgewidth=0, **look)
            picture.tooltips(dots, [f"{curve.name}: {y:.2f} at {x:g}" for x, y in curve.points])
    reached = 0.0
    for x, y, name, colour in sorted(ends, key=lambda end: end[1]):
        reached, words = max(y + 4, reached + LINE), svg.shortened(name, most=LONGEST)
        bold: dict[str, Any] = {"color": svg.mixed(colour, "#000000", 0.2), "fontweight": 700}
        picture.text(x + 10, reached, words, size=NAME_SIZE, tooltip=name, **bold)
    for mark in panel.marks:
        (ring,) = axes.plot(mark.x, mark.y, "o", ms=12, mfc="none", mec=svg.INK, mew=1.6, clip_on=False)
        picture.tooltips(ring, [mark.words])
        start = _pixels(picture, axes, mark.x, mark.y)[0] - svg.text_width(mark.words, size=11)
        far = start > LEFT + WIDTH / 4
        offset, side = ((-10, 10), "right") if far else ((10, -16), "left")
        axes.annotate(mark.words, (mark.x, mark.y), offset, textcoords="offset points", ha=side)


def _limits(axes: Axes, panel: Panel) -> None:
    """Sets the scales: y from 0 to a round number, x to the last tick, without labels that touch."""
    ys = [y for curve in panel.curves for _, y in curve.points] + [mark.y for mark in panel.marks]
    rows = _beyond(max(ys), max(4, round(panel.height / 50)))
    axes.set_yticks(rows, [f"{row:g}" for row in rows])
    axes.set_ylim(0, rows[-1])
    axes.spines.bottom.set_visible(True)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel(panel.axes[1], rotation=0, ha="left", va="bottom", y=1, labelpad=0)
    axes.yaxis.set_label_coords(0, 1 + 14 / panel.height)
    axes.set_xlabel(panel.axes[0], labelpad=10)
    if panel.doubling:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    axes.set_xlim(min(panel.ticks) if panel.doubling else 0, max(panel.ticks))
    labels, free = [], 0.0
    for tick in panel.ticks:
        x, half = axes.transData.transform((tick, 0))[0], svg.text_width(f"{tick:g}", size=11) / 2
        labels.append(f"{tick:g}" if x - half >= free else "")
        free = x + half + 2 if labels[-1] else free
    axes.set_xticks(panel.ticks, labels)
    axes.tick_params(axis="x", length=5)


def _pixels(picture: Canvas, axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Returns where a point of a plot lies on the page."""
    across, up = axes.transData.transform((x, y))
    return across, picture.height - up
