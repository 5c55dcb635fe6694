"""Steps as Gantt charts: lanes of bars coloured by kind, messages between lanes, the critical path.

A chart knows no plan: predicted and measured steps (`steps`) are drawn by the same code. Bars narrower than a
pixel that follow one another are drawn as one; where there are very many, wider ones too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from matplotlib.collections import LineCollection
from matplotlib.ticker import AutoMinorLocator, MaxNLocator

from partita.engine.view import svg
from partita.engine.view.canvas import MARGIN, Canvas, canvas
from partita.partitioner.text import readable_seconds

KINDS: Final = {
    "forward": ("#0072b2", "forward"),
    "backward": ("#e69f00", "backward"),
    "update": ("#009e73", "weight gradients and updates"),
    "other": ("#9aa5b1", "copies and sums"),
    "send": ("#b04a90", "sending"),
    "receive": ("#dca3cb", "receiving"),
    "wait": ("#f1dede", "waiting"),
}
"""Colour of each kind of bar, and its words in the legend."""
CRITICAL, CRITICAL_WIDTH = "#c0182b", 2.6
"""Colour and width of the line that marks the critical path."""
PLOT, HEADING, LEGEND = 1100.0, 76.0, 26.0
"""Pixels of the time axis, and heights of the title and of the legend below it."""
TALLEST, LEAST, THIN = 26.0, 9.0, 0.35
"""Heights of a lane in pixels, and of a thin one as a share of it."""
ROOM = 620.0
"""Pixels of height that lanes share as long as they can."""
LABEL_SIZE, NAME_SIZE, LONGEST = 9.5, 11.5, 44
"""Sizes of words on bars and of names of lanes; characters of a name."""
MANY = 5_000
"""Number of bars up to which only those narrower than a pixel are joined; of more, wider ones too."""
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


@dataclass(frozen=True, slots=True)
class GanttBar:
    """A span of time in which something was done.

    Args:
        lane: number of its lane.
        start_s, stop_s: from the start of the step.
        label: what was done, in few words.
        kind: one of `KINDS`.
        critical: whether the bar lies on the critical path.
    """

    lane: int
    start_s: float
    stop_s: float
    label: str
    kind: str
    critical: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """The label, and without the instruction, which the colour tells."""
        instruction, _, rest = self.label.partition(" ")
        return (self.label, rest) if rest and instruction.isupper() else (self.label,)


@dataclass(frozen=True, slots=True)
class GanttArrow:
    """A message on its way from a lane to another one. Arguments as of `GanttBar`."""

    source: int
    destination: int
    start_s: float
    stop_s: float
    label: str
    critical: bool = False


@dataclass(frozen=True)
class Lane:
    """A row: the kernels of a machine, or (`thin`) its communication thread below them, without a name."""

    name: str
    thin: bool = False


@dataclass(frozen=True)
class Gantt:
    """Contents of a chart.

    Args:
        title, subtitle: above it.
        lanes: from the top.
        bars: in any order.
        arrows: messages to be shown.
        until_s: least end of the axis; charts that are compared share it.
    """

    title: str
    subtitle: str
    lanes: tuple[Lane, ...]
    bars: tuple[GanttBar, ...]
    arrows: tuple[GanttArrow, ...] = ()
    until_s: float = 0.0

    @property
    def stop_s(self) -> float:
        """End of the last bar or arrow, or of the axis that was asked for."""
        ends = (found.stop_s for group in (self.bars, self.arrows) for found in group)
        return max([self.until_s, *ends, 1e-9])

    def owner(self, lane: int) -> str:
        """Name of a lane, or of the nearest above that has one."""
        return next((found.name for found in reversed(self.lanes[: lane + 1]) if found.name), "")


def draw_gantt(gantt: Gantt, *, zoomable: bool = False) -> str:
    """Draws a chart, as the text of an SVG file.

    Args:
        gantt: contents.
        zoomable: adds finer ticks for a page that can stretch the group `time` (`templates/zoom.js`).

    Raises:
        ValueError: a bar is of no known kind or lane.
    """
    for bar in gantt.bars:
        if bar.kind not in KINDS or not 0 <= bar.lane < len(gantt.lanes):
            raise ValueError(f"{bar} is of no known kind or lane; kinds are {', '.join(KINDS)}")
    place = _Placement(gantt)
    width = max(place.left + PLOT + MARGIN + 30, svg.text_width(gantt.subtitle) + 2 * MARGIN)
    with canvas(gantt.title, width, place.bottom + MARGIN + 14) as picture:
        _Drawing(gantt, place, picture).draw(zoomable=zoomable)
    return picture.svg


class _Placement:
    """Places of the lanes on the page, and the scale of time."""

    def __init__(self, gantt: Gantt) -> None:
        full = sum(not lane.thin for lane in gantt.lanes)
        self.lane = min(TALLEST, max(LEAST, ROOM / max(full, 1) / (1 + 2 * THIN)))
        self.names = [svg.shortened(lane.name, most=LONGEST) for lane in gantt.lanes]
        self.left = MARGIN + max((svg.text_width(n, size=NAME_SIZE) for n in self.names), default=0.0) + 12
        self.unit_s, self.unit = next((u for u in UNITS if gantt.stop_s >= u[0]), UNITS[-1])
        self.stop = gantt.stop_s / self.unit_s
        self.pixel_s = gantt.stop_s / PLOT
        self.heights = [self.lane * THIN if lane.thin else self.lane for lane in gantt.lanes]
        self.tops, y = [], MARGIN + HEADING + LEGEND + 18
        for number, lane in enumerate(gantt.lanes):
            y += self.lane * 0.45 if number and not lane.thin else 1.0
            self.tops.append(y)
            y += self.heights[number]
        self.top, self.bottom = (self.tops[0] if self.tops else y) - 8, y + 6


class _Drawing:
    """Draws one chart: x in the unit of its axis, y in pixels of the page."""

    def __init__(self, gantt: Gantt, place: _Placement, picture: Canvas) -> None:
        self.gantt, self.place, self.picture = gantt, place, picture
        self.axes = picture.axes(place.left, place.top, PLOT, place.bottom - place.top)
        self.axes.set(xlim=(0, place.stop), ylim=(place.bottom, place.top), yticks=[])

    def draw(self, *, zoomable: bool) -> None:
        self._axis(zoomable=zoomable)
        self._bars()
        self._lines()
        self._words()

    def _axis(self, *, zoomable: bool) -> None:
        axis, unit = self.axes.xaxis, self.place.unit
        axis.set_major_locator(MaxNLocator(9, steps=[1, 2, 5, 10]))
        axis.set_major_formatter(lambda at, _: f"{at:.10g} {unit}")
        if zoomable:
            axis.set_minor_locator(AutoMinorLocator(5))
            axis.set_minor_formatter(axis.get_major_formatter())
            self.axes.grid(which="minor", color=svg.mixed(svg.FAINT, "#ffffff", 0.6))
            for tick in axis.get_minor_ticks():
                tick.label1.set_gid("fine")
                tick.label2.set_gid("fine")
        self.axes.tick_params(which="both", labeltop=True, labelsize=10, pad=5)

    def _bars(self) -> None:
        place, gantt = self.place, self.gantt
        narrow_s = max(1.0, len(gantt.bars) / MANY) * place.pixel_s
        order = sorted(gantt.bars, key=attrgetter("lane", "start_s", "stop_s"))
        shown = [
            bar
            for _, group in groupby(order, key=attrgetter("lane"))
            for bar in merged(group, narrow_s=narrow_s, gap_s=0.5 * place.pixel_s)
        ]
        self.picture.insert(self.axes, map(self._box, shown), zorder=2)
        for bar in gantt.bars if place.lane >= LABEL_SIZE + 3 else ():
            room = (bar.stop_s - bar.start_s) / place.pixel_s - 4
            labels = (words for words in bar.labels if svg.text_width(words, size=LABEL_SIZE) <= room)
            label = next(labels, "")
            if label and not gantt.lanes[bar.lane].thin:
                x = (bar.start_s + bar.stop_s) / 2 / place.unit_s
                y, ink = place.tops[bar.lane] + place.lane / 2 + 3.5, svg.ink_on(KINDS[bar.kind][0])
                self.axes.text(x, y, label, size=LABEL_SIZE, color=ink, ha="center", clip_on=False)

    def _box(self, bar: GanttBar) -> str:
        place, width = self.place, (bar.stop_s - bar.start_s) / self.place.pixel_s
        return svg.element(
            "rect",
            svg.title(self._told(bar)),
            x=f"{place.left + bar.start_s / place.pixel_s:.3f}",
            y=place.tops[bar.lane],
            width=f"{max(width, 0.3):.3f}",
            height=place.heights[bar.lane],
            fill=KINDS[bar.kind][0],
        )

    def _told(self, bar: GanttBar) -> str:
        took, since = readable_seconds(bar.stop_s - bar.start_s), readable_seconds(bar.start_s)
        return f"{self.gantt.owner(bar.lane)}: {bar.label}: {took}, from {since} on"

    def _lines(self) -> None:
        """Draws messages on their way, and a line along the top of the bars of the critical path."""
        place, bars = self.place, [bar for bar in self.gantt.bars if bar.critical]
        arrows = sorted(self.gantt.arrows, key=lambda arrow: arrow.critical)
        ends, told, colours, widths = [], [], [], []
        for arrow in arrows:
            ys = (place.tops[n] + place.heights[n] / 2 for n in (arrow.source, arrow.destination))
            xs = arrow.start_s / place.unit_s, arrow.stop_s / place.unit_s
            ends.append(tuple(zip(xs, ys, strict=True)))
            told.append(f"{arrow.label}: {readable_seconds(arrow.stop_s - arrow.start_s)} on its way")
            colours.append(CRITICAL if arrow.critical else KINDS["send"][0] + "73")
            widths.append(1.6 if arrow.critical else 0.8)
        for bar in sorted(bars, key=lambda bar: bar.start_s):
            y = place.tops[bar.lane] + CRITICAL_WIDTH / 2
            ends.append(((bar.start_s / place.unit_s, y), (bar.stop_s / place.unit_s, y)))
            told.append(self._told(bar))
            colours.append(CRITICAL)
            widths.append(CRITICAL_WIDTH)
        if ends:
            look: dict[str, Any] = {"colors": colours, "linewidths": widths, "clip_on": False, "zorder": 3}
            artist = self.axes.add_collection(LineCollection(ends, capstyle="butt", **look))
            self.picture.tooltips(artist, told)

    def _words(self) -> None:
        picture, place, gantt = self.picture, self.place, self.gantt
        picture.heading(gantt.title, gantt.subtitle)
        x, y = MARGIN, MARGIN + HEADING - 8
        met = {bar.kind for bar in gantt.bars}
        entries = [entry for kind, entry in KINDS.items() if kind in met]
        if any(bar.critical for bar in gantt.bars):
            entries.append((CRITICAL, "critical path"))
        for fill, words in entries:
            picture.box(x, y - (6 if fill == CRITICAL else 10), 16, 3 if fill == CRITICAL else 12, fill)
            picture.text(x + 22, y, words, size=11.5, color=svg.SOFT)
            x += 44 + svg.text_width(words, size=11.5)
        picture.box(-20, place.top + 5, place.left + 14, place.bottom - place.top - 5, "#ffffff")
        for number, lane in enumerate(gantt.lanes):
            if lane.name:
                y, size = place.tops[number] + place.lane / 2 + 4, min(NAME_SIZE, place.lane + 1)
                picture.text(
                    place.left - 10, y, place.names[number], size=size, ha="right", tooltip=lane.name
                )


def merged(bars: Iterable[GanttBar], *, narrow_s: float, gap_s: float) -> list[GanttBar]:
    """Joins bars of one lane that are narrow, alike and follow one another.

    Args:
        bars: by start.
        narrow_s: what lasts less is narrow.
        gap_s: what lies further apart does not follow one another.
    """
    found: list[tuple[GanttBar, float, int]] = []
    for bar in bars:
        last, stop_s, count = found[-1] if found else (None, 0.0, 0)
        alike = last is not None and (last.kind, last.critical) == (bar.kind, bar.critical)
        if last and alike and bar.start_s - stop_s < gap_s and bar.stop_s - bar.start_s < narrow_s:
            found[-1] = last, max(stop_s, bar.stop_s), count + 1
        else:
            found.append((bar, bar.stop_s, 1))
    return [
        bar if count == 1 else replace(bar, stop_s=stop_s, label=f"{bar.label} and {count - 1} more")
        for bar, stop_s, count in found
    ]
