"""A timeline as an SVG picture: lanes of bars in their kinds' colours, messages between lanes, round ticks.

It knows no plan: what is predicted (`predicted.py`) and what was measured are drawn by the same code. Bars
narrower than a pixel that follow one another are drawn as one; where there are very many, wider ones too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from partita.engine.view import svg
from partita.engine.view.time_axis import TimeAxis, time_axis
from partita.partitioner.text import readable_seconds

KINDS = {
    "up": ("#0072b2", "states"),
    "errors": ("#e69f00", "errors"),
    "learn": ("#009e73", "learning"),
    "other": ("#9aa5b1", "copies and sums"),
    "send": ("#b04a90", "sending"),
    "receive": ("#dca3cb", "receiving"),
    "wait": ("#f1dede", "waiting"),
}
"""By kind of bar, its colour and what the legend calls it."""
CRITICAL, CRITICAL_WIDTH = "#c0182b", 2.6
"""Colour and width of the line that marks the critical path."""
PLOT, MARGIN, HEADING, LEGEND = 1100.0, 28.0, 76.0, 26.0
"""Width of the time axis; around everything; for the title, and for the legend below it, in pixels."""
TALLEST, LEAST, THIN = 26.0, 9.0, 0.35
"""Heights of a lane in pixels, and of a thin one as a share of it."""
ROOM = 620.0
"""Height that lanes share as long as they can, in pixels."""
LABEL_SIZE, NAME_SIZE = 9.5, 11.5
MANY = 5_000
"""Bars up to which only those narrower than a pixel are joined; of more, wider ones too."""
ZOOM = 40
"""A label that would fit at this zoom is written, hidden, into a picture that can be zoomed."""


@dataclass(frozen=True, slots=True)
class TimelineBar:
    """Something that took time.

    Args:
        lane: its lane, by number.
        start_s, stop_s: from the start of the step.
        label: what it was; short.
        kind: one of `KINDS`.
        critical: whether it lies on the critical path.
    """

    lane: int
    start_s: float
    stop_s: float
    label: str
    kind: str
    critical: bool = False


@dataclass(frozen=True, slots=True)
class TimelineFlight:
    """A message on its way from a lane to another one. Arguments as of `TimelineBar`."""

    source: int
    destination: int
    start_s: float
    stop_s: float
    label: str
    critical: bool = False


@dataclass(frozen=True)
class Lane:
    """A row of the timeline: a machine's kernels, or `thin` below it its messenger, which needs no name."""

    name: str
    thin: bool = False


@dataclass(frozen=True)
class Timeline:
    """What is drawn.

    Args:
        title, subtitle: above it.
        lanes: from the top.
        bars: in any order.
        flights: messages that are to be shown.
        until_s: where the axis ends at least; pictures that are compared share it.
    """

    title: str
    subtitle: str
    lanes: tuple[Lane, ...]
    bars: tuple[TimelineBar, ...]
    flights: tuple[TimelineFlight, ...] = ()
    until_s: float = 0.0

    @property
    def stop_s(self) -> float:
        """Where the axis ends: with the last bar, or later."""
        return max((self.until_s, *(bar.stop_s for bar in self.bars)))


def draw_timeline(timeline: Timeline, *, zoomable: bool = False) -> str:
    """The picture, as the text of an SVG file.

    Args:
        timeline: what is drawn.
        zoomable: for the script of the page: with labels and ticks that are hidden until there is room.

    Raises:
        ValueError: a bar is of no known kind, or in no lane.
    """
    return Picture(timeline, zoomable=zoomable).text()


class Picture:
    """Places lanes and the time axis, then writes from the back to the front."""

    def __init__(self, timeline: Timeline, *, zoomable: bool) -> None:
        for bar in timeline.bars:
            if bar.kind not in KINDS or not 0 <= bar.lane < len(timeline.lanes):
                raise ValueError(f"{bar} is of no known kind or lane; kinds are {', '.join(KINDS)}")
        self.timeline, self.zoomable = timeline, zoomable
        self.axis: TimeAxis = time_axis(timeline.stop_s)
        full = sum(not lane.thin for lane in timeline.lanes)
        share = ROOM / max(full, 1) / (1 + 2 * THIN)
        self.lane = min(TALLEST, max(LEAST, share))
        names = [svg.text_width(lane.name, size=NAME_SIZE) for lane in timeline.lanes]
        self.left = MARGIN + max(names, default=0.0) + 12
        self.scale = PLOT / self.axis.stop_s
        self.narrow = max(1.0, len(timeline.bars) / MANY)
        self.tops, y = [], MARGIN + HEADING + LEGEND + 18
        for number, lane in enumerate(timeline.lanes):
            y += self.lane * 0.45 if number and not lane.thin else 1.0
            self.tops.append(y)
            y += self._height(number)
        self.bottom = y + 6

    def _height(self, number: int) -> float:
        return self.lane * THIN if self.timeline.lanes[number].thin else self.lane

    def _x(self, seconds: float) -> float:
        return self.left + seconds * self.scale

    def text(self) -> str:
        """The whole document."""
        timeline = self.timeline
        width = max(self.left + PLOT + MARGIN + 30, svg.text_width(timeline.subtitle, size=11) + 2 * MARGIN)
        parts = [
            svg.element("g", *self._heading(), class_="stays"),
            svg.element("g", *self._ticks(), class_="time"),
            svg.element("g", *self._bars(), *self._labels(), class_="time"),
            svg.element("g", *self._flights(), *self._critical(), class_="time"),
            svg.element("g", *self._names(), class_="stays"),
        ]
        return svg.document(timeline.title, width, self.bottom + MARGIN + 14, parts)

    def _heading(self) -> Iterator[str]:
        yield svg.text(MARGIN, MARGIN + 18, self.timeline.title, size=22, font_weight=700)
        yield svg.text(MARGIN, MARGIN + 40, self.timeline.subtitle, fill=svg.SOFT)
        yield self._legend()

    def _legend(self) -> str:
        met = {bar.kind for bar in self.timeline.bars}
        x, y, found = MARGIN, MARGIN + HEADING - 8, []
        entries = [(fill, words) for kind, (fill, words) in KINDS.items() if kind in met]
        for fill, words in entries:
            found.append(svg.element("rect", x=x, y=y - 10, width=16, height=12, rx=2, fill=fill))
            found.append(svg.text(x + 22, y, words, size=11.5, fill=svg.SOFT))
            x += 44 + svg.text_width(words, size=11.5)
        if any(bar.critical for bar in self.timeline.bars):
            found.append(svg.element("rect", x=x, y=y - 6, width=16, height=3, fill=CRITICAL))
            found.append(svg.text(x + 22, y, "critical path", size=11.5, fill=svg.SOFT))
        return "".join(found)

    def _ticks(self) -> Iterator[str]:
        top, axis = self.tops[0] - 8 if self.tops else 0.0, self.axis
        fine = [(tick, axis.step_s / 5) for tick in axis.between] if self.zoomable else []
        need = svg.text_width(max(map(axis.text, axis.ticks), key=len), size=10) + 6
        for tick, apart in [*fine, *((tick, axis.step_s) for tick in axis.ticks)]:
            x, words = self._x(tick), axis.text(tick)
            room = apart * self.scale
            stroke = svg.FAINT if apart == axis.step_s else svg.mixed(svg.FAINT, "#ffffff", 0.6)
            yield svg.element("line", x1=x, x2=x, y1=top, y2=self.bottom, stroke=stroke)
            for y in (top - 4, self.bottom + 12):
                yield self._word(x, y, words, size=10, need=need, room=room, fill=svg.SOFT)

    def _bars(self) -> Iterator[str]:
        order = sorted(self.timeline.bars, key=lambda bar: (bar.lane, bar.start_s, bar.stop_s))
        for number, group in groupby(order, key=lambda bar: bar.lane):
            for bar in merged(group, narrow_s=self.narrow / self.scale, gap_s=0.5 / self.scale):
                took = readable_seconds(bar.stop_s - bar.start_s)
                told = f"{bar.label}: {took}, from {readable_seconds(bar.start_s)} on"
                yield svg.element(
                    "rect",
                    svg.title(f"{self._owner(number)}: {told}"),
                    x=svg.precise(self._x(bar.start_s)),
                    y=self.tops[number],
                    width=svg.precise(max((bar.stop_s - bar.start_s) * self.scale, 0.3)),
                    height=self._height(number),
                    fill=KINDS[bar.kind][0],
                )

    def _critical(self) -> Iterator[str]:
        """A line along the top of the bars that decide how long the step takes."""
        order = sorted((bar for bar in self.timeline.bars if bar.critical), key=lambda bar: bar.start_s)
        for bar in order:
            y = self.tops[bar.lane] + CRITICAL_WIDTH / 2
            ends = {"x1": svg.precise(self._x(bar.start_s)), "x2": svg.precise(self._x(bar.stop_s))}
            yield svg.element("line", **ends, y1=y, y2=y, stroke=CRITICAL, stroke_width=CRITICAL_WIDTH)

    def _owner(self, number: int) -> str:
        """The name of a lane, or of the nearest above that has one."""
        named = (lane.name for lane in reversed(self.timeline.lanes[: number + 1]) if lane.name)
        return next(named, "")

    def _labels(self) -> Iterator[str]:
        if self.lane < LABEL_SIZE + 3:
            return
        for bar in self.timeline.bars:
            if self.timeline.lanes[bar.lane].thin:
                continue
            room = (bar.stop_s - bar.start_s) * self.scale
            need = svg.text_width(bar.label, size=LABEL_SIZE) + 4
            y = self.tops[bar.lane] + self.lane / 2 + 3.5
            ink = svg.ink_on(KINDS[bar.kind][0])
            x = self._x((bar.start_s + bar.stop_s) / 2)
            yield self._word(x, y, bar.label, size=LABEL_SIZE, need=need, room=room, fill=ink)

    def _word(
        self, x: float, y: float, words: str, *, size: float, need: float, room: float, fill: str
    ) -> str:
        """Centred words, where there is room for them; hidden, where there may be after zooming."""
        hidden = room < need
        if hidden and (not self.zoomable or room * ZOOM < need):
            return ""
        data = {"data_need": need, "data_room": svg.precise(room)} if self.zoomable else {}
        return svg.text(
            x,
            y,
            words,
            size=size,
            fill=fill,
            text_anchor="middle",
            visibility="hidden" if hidden else None,
            pointer_events="none",
            **data,
        )

    def _flights(self) -> Iterator[str]:
        for flight in sorted(self.timeline.flights, key=lambda flight: flight.critical):
            ends = [
                self.tops[number] + self._height(number) / 2 for number in (flight.source, flight.destination)
            ]
            yield svg.element(
                "line",
                svg.title(f"{flight.label}: {readable_seconds(flight.stop_s - flight.start_s)} on its way"),
                x1=svg.precise(self._x(flight.start_s)),
                x2=svg.precise(self._x(flight.stop_s)),
                y1=ends[0],
                y2=ends[1],
                stroke=CRITICAL if flight.critical else KINDS["send"][0],
                stroke_width=1.6 if flight.critical else 0.8,
                stroke_opacity=1 if flight.critical else 0.45,
            )

    def _names(self) -> Iterator[str]:
        width, top = self.left - 6, self.tops[0] - 3 if self.tops else 0.0
        yield svg.element("rect", x=-20, y=top, width=width + 20, height=self.bottom - top, fill="#ffffff")
        for number, lane in enumerate(self.timeline.lanes):
            if lane.name:
                y = self.tops[number] + self.lane / 2 + 4
                yield svg.text(
                    self.left - 10, y, lane.name, size=min(NAME_SIZE, self.lane + 1), text_anchor="end"
                )


def merged(bars: Iterable[TimelineBar], *, narrow_s: float, gap_s: float) -> list[TimelineBar]:
    """Bars of one lane, by start; those that are narrow, alike and follow one another are one.

    Args:
        bars: by start.
        narrow_s: what lasts less is narrow.
        gap_s: what lies further apart does not follow one another.
    """
    found: list[TimelineBar] = []
    counts: list[int] = []
    for bar in bars:
        last = found[-1] if found else None
        alike = last is not None and (last.kind, last.critical) == (bar.kind, bar.critical)
        close = last is not None and bar.start_s - last.stop_s < gap_s
        if last is not None and alike and close and bar.stop_s - bar.start_s < narrow_s:
            counts[-1] += 1
            stop = max(last.stop_s, bar.stop_s)
            found[-1] = replace(last, stop_s=stop)
        else:
            found.append(bar)
            counts.append(1)
    return [
        bar if count == 1 else replace(bar, label=f"{bar.label} and {count - 1} more")
        for bar, count in zip(found, counts, strict=True)
    ]


def lanes_of(machines: Sequence[str]) -> tuple[Lane, ...]:
    """Two lanes for each machine: 2m for its kernels, 2m + 1 for its messenger."""
    return tuple(lane for name in machines for lane in (Lane(name), Lane("", thin=True)))
