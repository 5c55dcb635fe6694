"""The speed-up curve as a picture: what was measured, what was simulated, and what would be ideal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from partita.engine.profile.report import PointReport, Report
from partita.engine.view import svg
from partita.layers.text import counted

WIDTH: Final = 620.0
HEIGHT: Final = 380.0
LEFT: Final = 52.0
RIGHT: Final = 20.0
TOP: Final = 40.0
BOTTOM: Final = 48.0
MEASURED: Final = "#d55e00"
PREDICTED: Final = "#0072b2"
WIDE: Final = 16
"""From so many machines on, the axis of machines counts in doublings."""


def draw_speed_up(report: Report) -> str:
    """The picture of a report."""
    return _Curve(report).picture()


class _Curve:
    def __init__(self, report: Report) -> None:
        self.points = report.points
        self.most = max(point.machines for point in self.points)
        self.doublings = self.most > WIDE
        highest = max(max(p.speed_up, p.predicted_speed_up) for p in self.points)
        self.highest = 1.1 * max(min(1.25 * highest, self.most), highest, 1.0)

    def picture(self) -> str:
        parts = [*self._grid(), *self._ideal(), *self._predicted(), *self._marks(), *self._legend()]
        return svg.document("speed-up by number of machines", WIDTH, HEIGHT, parts)

    def _x(self, machines: float) -> float:
        first, last = (0.0, math.log2(self.most)) if self.doublings else (1.0, float(self.most))
        at = math.log2(machines) if self.doublings else machines
        return LEFT + (WIDTH - LEFT - RIGHT) * (0.04 + 0.92 * (at - first) / max(last - first, 1e-9))

    def _y(self, speed_up: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * speed_up / self.highest

    def _grid(self) -> Iterator[str]:
        step = _step(self.highest)
        for n in range(int(self.highest / step) + 1):
            y = self._y(n * step)
            yield _line(LEFT, y, WIDTH - RIGHT, y, svg.FAINT)
            yield svg.text(LEFT - 8, y + 4, f"{n * step:g}x", size=11, fill=svg.SOFT, text_anchor="end")
        for point in self.points:
            x = self._x(point.machines)
            label = str(point.machines)
            yield svg.text(x, HEIGHT - BOTTOM + 18, label, size=11, fill=svg.SOFT, text_anchor="middle")
        middle = (LEFT + WIDTH - RIGHT) / 2
        yield svg.text(middle, HEIGHT - 10, "machines", size=12, fill=svg.SOFT, text_anchor="middle")

    def _ideal(self) -> Iterator[str]:
        """One more machine, one more times as fast; as far as it stays in the picture."""
        reach = min(float(self.most), self.highest)
        steps = [1.0 + (reach - 1.0) * n / 40 for n in range(41)]
        path = " ".join(f"{self._x(m):.1f},{self._y(m):.1f}" for m in steps)
        yield svg.element("polyline", points=path, fill="none", stroke=svg.SOFT, stroke_dasharray="2 4")

    def _predicted(self) -> Iterator[str]:
        path = " ".join(f"{self._x(p.machines):.1f},{self._y(p.predicted_speed_up):.1f}" for p in self.points)
        yield svg.element("polyline", points=path, fill="none", stroke=PREDICTED, stroke_width=2)

    def _marks(self) -> Iterator[str]:
        for point in self.points:
            yield _mark(point.source, self._x(point.machines), self._y(point.speed_up), _words(point))

    def _legend(self) -> Iterator[str]:
        x = LEFT + 6
        for source in ("measured", "simulated"):
            yield _mark(source, x + 6, 20, source)
            yield svg.text(x + 18, 24, source, size=12)
            x += 18 + svg.text_width(source) + 16
        yield _line(x, 20, x + 22, 20, PREDICTED, stroke_width=2)
        yield svg.text(x + 28, 24, "predicted", size=12)
        x += 28 + svg.text_width("predicted") + 16
        yield _line(x, 20, x + 22, 20, svg.SOFT, stroke_dasharray="2 4")
        yield svg.text(x + 28, 24, "ideal", size=12)


def _step(until: float) -> float:
    """From one tick to the next: at most eight of them, and round."""
    power = 10.0 ** math.floor(math.log10(until / 8))
    return next(power * factor for factor in (1, 2, 5, 10) if until / (power * factor) <= 8)


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, **more: object) -> str:
    return svg.element("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=stroke, **more)


def _mark(source: str, x: float, y: float, words: str) -> str:
    """A full disc was measured; an empty diamond was simulated."""
    if source == "measured":
        return svg.element("circle", svg.title(words), cx=x, cy=y, r=5.5, fill=MEASURED)
    corners = f"{x:.1f},{y - 7:.1f} {x + 7:.1f},{y:.1f} {x:.1f},{y + 7:.1f} {x - 7:.1f},{y:.1f}"
    look = {"fill": "#ffffff", "stroke": PREDICTED, "stroke_width": 2}
    return svg.element("polygon", svg.title(words), points=corners, **look)


def _words(point: PointReport) -> str:
    count, gained = counted(point.machines, "machine"), f"{point.speed_up:.2f}x"
    return f"{count}, {point.source}: {gained}, predicted {point.predicted_speed_up:.2f}x"
