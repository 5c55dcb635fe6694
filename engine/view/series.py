"""Lines over the time of a run: a loss, a speed; with dots for what was seldom taken, and marks for events.

Drawn without a library, since a live page draws them every second; any number of points is drawn as at most
`MOST` places across. Words of the vertical axis stand to the left of the picture, where its page leaves room
(`.series` of its style sheet).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from partita.engine.view import responsive, svg, theme
from partita.engine.view.responsive import share
from partita.partitioner.text import readable_seconds

HEIGHT: Final = 150.0
"""Pixels of the area of lines."""
MOST: Final = 240
"""Points that are drawn of a line: the mean of those that share a place."""


@dataclass(frozen=True)
class Line:
    """A line through points (seconds, value), by time.

    Args:
        name: in the legend.
        points: at least one.
        colour: of `theme`.
        dots: rings instead of a line.
        thin: of one of many.
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dots: bool = False
    thin: bool = False


@dataclass(frozen=True)
class Moment:
    """A vertical mark at a time, with what happened as its tooltip."""

    at_s: float
    words: str
    colour: str = theme.SOFT


def draw_series(
    title: str,
    lines: Sequence[Line],
    moments: Sequence[Moment] = (),
    *,
    until_s: float,
    height: float = HEIGHT,
) -> str:
    """Draws lines on one pair of axes, as the text of an SVG file that is as wide as what it is shown in.

    Args:
        title: for those who cannot see it.
        lines: in the order of the legend.
        moments: marks of events.
        until_s: end of the axis of time.
        height: of the area of lines, in pixels.
    """
    values = [value for line in lines for _, value in line.points]
    low, high, step = _range(values)
    until_s = max(until_s, 1.0)
    parts = [*_rows(low, high, step, height), _times(until_s, height)]
    parts += [_moment(moment, until_s, height) for moment in moments if moment.at_s <= until_s]
    for line in lines:
        points = [(x / until_s, (high - y) / (high - low)) for x, y in _thinned(line.points, until_s)]
        parts += _ring(line, points, height) if line.dots else [_path(line, points, height)]
        parts += _told(line, until_s, low, high, height)
    look = {"y": 10, "width": "100%", "height": height, "overflow": "visible"}
    return responsive.sheet(title, height + 40, [svg.element("svg", *parts, **look)])


def _range(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns the ends of the vertical axis and its step: round numbers around all values."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low >= 0 and low < 0.6 * high:
        low = 0.0
    if high - low < 1e-12 * max(abs(high), 1.0):
        low, high = (low - 0.5 * abs(low or 1.0), high + 0.5 * abs(high or 1.0))
        low = max(low, 0.0) if min(values, default=0.0) >= 0 else low
    step = responsive.round_step(high - low, most=4)
    first, last = int(low // step), int(-(-high // step))
    return first * step, max(last, first + 1) * step, step


def _rows(low: float, high: float, step: float, height: float) -> Iterator[str]:
    for n in range(round((high - low) / step) + 1):
        value = low + n * step
        y = height * (high - value) / (high - low)
        yield svg.element("line", x1=0, x2="100%", y1=y, y2=y, stroke=theme.FAINT)
        yield svg.text(-7, y + 4, _short(value), size=10.5, fill=theme.SOFT, text_anchor="end")


def _short(value: float) -> str:
    """Writes a number of an axis in at most six characters or so."""
    size = abs(value)
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= unit:
            return f"{value / (1e3 if letter == 'k' else unit):.4g}{letter}"
    return f"{value:.4g}"


def _times(until_s: float, height: float) -> str:
    step = _time_step(until_s)
    parts, n = [], 0
    while n * step <= until_s * (1 + 1e-9):
        fine = {"class_": "fine"} if n % 2 else {}
        words = _clock(n * step)
        anchor = "start" if n == 0 else "end" if n * step > 0.97 * until_s else "middle"
        x = share(n * step / until_s)
        parts.append(svg.text(x, height + 17, words, size=10.5, fill=theme.SOFT, text_anchor=anchor, **fine))
        n += 1
    return "".join(parts)


def _time_step(until_s: float) -> float:
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
    return next((float(one) for one in steps if until_s / one <= 8), 86400.0 * (1 + until_s // 691200))


def _clock(at_s: float) -> str:
    minutes, seconds = divmod(round(at_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _thinned(points: Sequence[tuple[float, float]], until_s: float) -> list[tuple[float, float]]:
    """Returns the mean of the points in each place across."""
    if len(points) <= MOST:
        return list(points)
    found: dict[int, list[tuple[float, float]]] = {}
    for point in points:
        found.setdefault(int(point[0] / until_s * MOST), []).append(point)
    return [
        (sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group))
        for group in found.values()
    ]


def _path(line: Line, points: Sequence[tuple[float, float]], height: float) -> str:
    """Draws a line in a box that is stretched to the width; its stroke is not."""
    places = " ".join(f"{1000 * x:.0f} {height * y:.1f}" for x, y in points)
    d = f"M{places}" if len(points) > 1 else f"M{places}h2"
    width = 1.0 if line.thin else 2.0
    look = {
        "fill": "none",
        "stroke": line.colour,
        "stroke_width": width,
        "vector_effect": "non-scaling-stroke",
    }
    stroke = svg.element(
        "path", d=d, stroke_linejoin="round", **look, stroke_opacity=0.75 if line.thin else None
    )
    box = {"viewBox": f"0 0 1000 {svg.number(height)}", "preserveAspectRatio": "none", "overflow": "visible"}
    return svg.element("svg", stroke, width="100%", height=height, **box)


def _ring(line: Line, points: Sequence[tuple[float, float]], height: float) -> list[str]:
    look = {"r": 3.2, "fill": theme.PAPER, "stroke": line.colour, "stroke_width": 1.6}
    return [svg.element("circle", cx=share(x), cy=height * y, **look) for x, y in points]


def _told(line: Line, until_s: float, low: float, high: float, height: float) -> Iterator[str]:
    """Writes a dozen invisible targets along a line, which say its numbers."""
    points = _thinned(line.points, until_s)
    every = max(len(points) // 12, 1)
    chosen = points[::-1][::every][::-1]
    for x, y in chosen:
        told = f"{line.name}: {y:.6g} after {readable_seconds(x) if x else 'no time'}"
        place = {"cx": share(x / until_s), "cy": height * (high - y) / (high - low), "r": 7}
        yield svg.element("circle", **place, fill="transparent", tooltip=told)


def _moment(moment: Moment, until_s: float, height: float) -> str:
    x = share(moment.at_s / until_s)
    look = {"x1": x, "x2": x, "y1": 0, "y2": height}
    mark = svg.element("line", **look, stroke=moment.colour, stroke_dasharray="3 3")
    wide = svg.element("line", **look, stroke="transparent", stroke_width=9)
    return svg.element("g", wide, mark, tooltip=f"{_clock(moment.at_s)} {moment.words}")
