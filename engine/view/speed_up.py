"""The speed-up by number of machines of a profile: measured, simulated, predicted and ideal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from partita.engine.profile.report import PointReport, Report
from partita.engine.view import svg, theme
from partita.engine.view.canvas import Canvas, canvas
from partita.engine.view.curves import round_ticks
from partita.layers.text import counted

WIDTH, HEIGHT = 620.0, 380.0
LEFT, TOP, RIGHT, BOTTOM = 52.0, 40.0, 20.0, 48.0
WIDE = 16
"""Number of machines from which on the axis of machines counts in doublings."""
PREDICTED, MEASURED = theme.SOFT, theme.INK
"""Pale and dashed what was predicted, full what was measured: as in every picture."""


def draw_speed_up(report: Report) -> str:
    """Draws the curve of a report, as the text of an SVG file."""
    points = report.points
    most, top = _reach(points)
    with canvas("speed-up by number of machines", WIDTH, HEIGHT) as picture:
        axes = _axes(picture, points)
        steps = [1 + (min(float(most), top) - 1) * n / 40 for n in range(41)]
        axes.plot(steps, steps, color=svg.SOFT, linewidth=1, linestyle=(0, (2, 4)), label="ideal")
        machines, predicted = zip(*((p.machines, p.predicted_speed_up) for p in points), strict=True)
        axes.plot(machines, predicted, color=PREDICTED, linewidth=2, linestyle="--", label="predicted")
        disc: dict[str, Any] = {"marker": "o", "mfc": MEASURED, "mew": 0, "ms": 11}
        diamond: dict[str, Any] = {"marker": "D", "mfc": theme.PAPER, "mec": PREDICTED, "mew": 2, "ms": 10}
        for source, look in (("measured", disc), ("simulated", diamond)):
            found = [point for point in points if point.source == source]
            if found:
                spots = [p.machines for p in found], [p.speed_up for p in found]
                (marks,) = axes.plot(*spots, ls="", label=source, zorder=3, clip_on=False, **look)
                picture.tooltips(marks, list(map(_words, found)))
        axes.legend(bbox_to_anchor=(0, 1), ncols=4)
    return picture.svg


def _reach(points: Sequence[PointReport]) -> tuple[int, float]:
    """Returns the largest number of machines, and the end of the axis of speed-ups."""
    most = max(point.machines for point in points)
    highest = max(max(p.speed_up, p.predicted_speed_up) for p in points)
    return most, 1.1 * max(min(1.25 * highest, most), highest, 1.0)


def _axes(picture: Canvas, points: Sequence[PointReport]) -> Axes:
    axes = picture.axes(LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM)
    most, top = _reach(points)
    if most > WIDE:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
        axes.set_xlim(most**-0.04, most**1.04)
    else:
        margin = 0.04 * max(most - 1, 1)
        axes.set_xlim(1 - margin, most + margin)
    rows = round_ticks(top, most=8)
    axes.set_ylim(0, top)
    axes.set_yticks(rows, [f"{row:g}x" for row in rows])
    axes.set_xticks([p.machines for p in points], [str(p.machines) for p in points])
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("machines", labelpad=8)
    return axes


def _words(point: PointReport) -> str:
    count, gained = counted(point.machines, "machine"), f"{point.speed_up:.2f}x"
    return f"{count}, {point.source}: {gained}, predicted {point.predicted_speed_up:.2f}x"
