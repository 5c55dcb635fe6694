"""The speed-up by number of machines of a profile: measured, simulated, predicted and ideal."""

from __future__ import annotations

from typing import Any

from partita.engine.profile.report import PointReport, Report
from partita.engine.view import svg
from partita.engine.view.canvas import PALETTE, canvas
from partita.engine.view.curves import round_ticks
from partita.layers.text import counted

WIDTH, HEIGHT = 620.0, 380.0
LEFT, TOP, RIGHT, BOTTOM = 52.0, 40.0, 20.0, 48.0
WIDE = 16
"""Number of machines from which on the axis of machines counts in doublings."""
PREDICTED, MEASURED = PALETTE[:2]


def draw_speed_up(report: Report) -> str:
    """Draws the curve of a report, as the text of an SVG file."""
    points = report.points
    most = max(point.machines for point in points)
    highest = max(max(p.speed_up, p.predicted_speed_up) for p in points)
    top = 1.1 * max(min(1.25 * highest, most), highest, 1.0)
    with canvas("speed-up by number of machines", WIDTH, HEIGHT) as picture:
        axes = picture.axes(LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM)
        if most > WIDE:
            axes.set_xscale("log", base=2)
            axes.minorticks_off()
            axes.set_xlim(most**-0.04, most**1.04)
        else:
            axes.set_xlim(1 - 0.04 * (most - 1 or 1), most + 0.04 * (most - 1 or 1))
        axes.set_ylim(0, top)
        rows = round_ticks(top, most=8)
        axes.set_yticks(rows, [f"{row:g}x" for row in rows])
        axes.set_xticks([p.machines for p in points], [str(p.machines) for p in points])
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("machines", labelpad=8)
        reach = min(float(most), top)
        steps = [1 + (reach - 1) * n / 40 for n in range(41)]
        axes.plot(steps, steps, color=svg.SOFT, linewidth=1, linestyle=(0, (2, 4)), label="ideal")
        machines, predicted = zip(*((p.machines, p.predicted_speed_up) for p in points), strict=True)
        axes.plot(machines, predicted, color=PREDICTED, linewidth=2, label="predicted")
        disc: dict[str, Any] = {"color": MEASURED, "markersize": 11, "markeredgewidth": 0}
        diamond: dict[str, Any] = {"mfc": "#ffffff", "mec": PREDICTED, "mew": 2, "markersize": 10}
        for source, shape, look in (("measured", "o", disc), ("simulated", "D", diamond)):
            found = [point for point in points if point.source == source]
            if found:
                spots = [p.machines for p in found], [p.speed_up for p in found]
                (artist,) = axes.plot(*spots, shape, label=source, zorder=3, clip_on=False, **look)
                picture.tooltips(artist, list(map(_words, found)))
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=4,
            borderaxespad=0.2,
            columnspacing=1.5,
            fontsize=12,
        )
    return picture.svg


def _words(point: PointReport) -> str:
    count, gained = counted(point.machines, "machine"), f"{point.speed_up:.2f}x"
    return f"{count}, {point.source}: {gained}, predicted {point.predicted_speed_up:.2f}x"
