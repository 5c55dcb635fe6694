"""Steps as Gantt charts: lanes of bars coloured by kind, messages between lanes, the critical path.

A chart knows no plan: predicted, measured and live steps (`steps`) are drawn by the same code. Bars narrower
than a pixel that follow one another are drawn as one; where there are very many, a lane shows what it mostly
did in each slice of time (`crowds`, which also chooses the lanes of many machines).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Final

from partita.engine.view import responsive, svg, theme
from partita.engine.view.responsive import share
from partita.partitioner.text import readable_seconds

KINDS: Final = theme.DOING
"""Colour of each kind of bar, and its words in the legend."""
CRITICAL_WIDTH: Final = 2.6
"""Width of the line that marks the critical path, in pixels."""
FULL, THIN, PALE = 20.0, 8.0, 0.5
"""Heights of a lane and of a thin one, in pixels, and how opaque a predicted lane is."""
NAME, GAP = 15.0, 7.0
"""Heights of the line of words above a lane and of the gap below one."""
HEADING: Final = 50.0
"""Height of title and subtitle."""
LABEL_SIZE, NAME_SIZE, LONGEST = 9.5, 11.5, 36
"""Sizes of words on bars and above lanes; characters of a name."""
NARROW: Final = 1.0 / responsive.WIDTH
"""Share of the axis below which a bar is narrow: a pixel of a picture by itself."""
MOST_BARS: Final = 900
"""Number of bars of a chart; where there are more, lanes show slices of time."""
MOST_ARROWS: Final = 200


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
    """A row of bars. A lane with a name begins a machine; those without one below it belong to it.

    Args:
        name: of the machine, or nothing.
        thin: of a communication thread, or of a prediction.
        pale: of a prediction.
        note: words beside the name.
    """

    name: str
    thin: bool = False
    pale: bool = False
    note: str = ""


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

    def __post_init__(self) -> None:
        for bar in self.bars:
            if bar.kind not in KINDS or not 0 <= bar.lane < len(self.lanes):
                raise ValueError(f"{bar} is of no known kind or lane; kinds are {', '.join(KINDS)}")

    @property
    def stop_s(self) -> float:
        """End of the last bar or arrow, or of the axis that was asked for."""
        ends = (found.stop_s for group in (self.bars, self.arrows) for found in group)
        return max([self.until_s, *ends, 1e-9])

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """Colours and words of the kinds of bars that are met, for a legend; one for each colour."""
        met = {bar.kind for bar in self.bars}
        found = dict(reversed([KINDS[kind] for kind in KINDS if kind in met]))
        entries = list(reversed(found.items()))
        critical = any(bar.critical for bar in self.bars) or any(a.critical for a in self.arrows)
        return [*entries, (theme.CRITICAL, "critical path")] if critical else entries

    def owner(self, lane: int) -> str:
        """Name of a lane, or of the nearest above that has one."""
        return next((found.name for found in reversed(self.lanes[: lane + 1]) if found.name), "")


def draw_gantt(gantt: Gantt, *, bare: bool = False) -> str:
    """Draws a chart, as the text of an SVG file.

    Args:
        gantt: contents.
        bare: leaves title, subtitle and legend to the page around it.
    """
    top = 24.0 if bare else HEADING + 56.0
    drawing = _Drawing(gantt, top)
    parts = [*([] if bare else _words(gantt)), *drawing.drawn()]
    return responsive.sheet(gantt.title, drawing.bottom + 10, parts)


def _words(gantt: Gantt) -> Iterator[str]:
    yield svg.text(responsive.SIDE, 28, gantt.title, size=18, font_weight=700)
    yield svg.text(responsive.SIDE, 47, gantt.subtitle, fill=theme.SOFT)
    yield from responsive.legend(gantt.kinds, y=72)


class _Drawing:
    """Places the lanes of a chart down the page, and draws them."""

    def __init__(self, gantt: Gantt, top: float) -> None:
        self.gantt, self.top, self.stop_s = gantt, top, gantt.stop_s
        self.tops: list[float] = []
        y = top
        for lane in gantt.lanes:
            if lane.name:
                y += NAME + (GAP if self.tops else 0)
            self.tops.append(y)
            y += self._height(lane) + 1
        self.bottom = y + 4

    def drawn(self) -> Iterator[str]:
        yield responsive.time_axis(self.stop_s, top=self.top, height=self.bottom - self.top)
        for number, lane in enumerate(self.gantt.lanes):
            if lane.name:
                y = self.tops[number] - 4
                yield responsive.caption(lane.name, lane.note, y=y, size=NAME_SIZE, most=LONGEST)
        yield responsive.plot(0, self.bottom, *self._bars(), *self._arrows(), class_="time")

    def _height(self, lane: Lane) -> float:
        return THIN if lane.thin else FULL

    def _bars(self) -> Iterator[str]:
        order = sorted(self.gantt.bars, key=attrgetter("lane", "start_s", "stop_s"))
        lanes = {n: list(group) for n, group in groupby(order, key=attrgetter("lane"))}
        shown = {n: merged(bars, narrow_s=NARROW * self.stop_s) for n, bars in lanes.items()}
        if sum(map(len, shown.values())) > MOST_BARS:
            room = max(12, MOST_BARS // len(shown))
            shown = {n: _sliced(bars, lanes[n], self.stop_s, room) for n, bars in shown.items()}
        for number, bars in shown.items():
            lane = self.gantt.lanes[number]
            look = {"opacity": PALE} if lane.pale else {}
            inside = (part for bar in bars for part in self._bar(bar, lane))
            yield svg.element("g", *inside, aria_label=self.gantt.owner(number), **look)

    def _bar(self, bar: GanttBar, lane: Lane) -> Iterator[str]:
        x, width = bar.start_s / self.stop_s, (bar.stop_s - bar.start_s) / self.stop_s
        y, height = self.tops[bar.lane], self._height(lane)
        fill, place = KINDS[bar.kind][0], {"x": share(x), "y": y, "height": height}
        place["width"] = share(max(width, NARROW / 3))
        yield svg.element("rect", **place, fill=fill, tooltip=self._told(bar))
        if bar.critical:
            look = {**place, "height": CRITICAL_WIDTH, "fill": theme.CRITICAL, "class_": "critical"}
            yield svg.element("rect", **look)
        if lane.thin:
            return
        room = width * responsive.WIDTH - 8
        label = next((words for words in bar.labels if svg.text_width(words, size=LABEL_SIZE) <= room), "")
        if label:  # an area of its own: on a narrow page words end with their bar
            word = svg.text(4, height / 2 + 3.5, label, size=LABEL_SIZE, fill=label_ink(bar.kind))
            yield svg.element("svg", word, **place, pointer_events="none")

    def _told(self, bar: GanttBar) -> str:
        took, since = readable_seconds(bar.stop_s - bar.start_s), readable_seconds(bar.start_s)
        return f"{self.gantt.owner(bar.lane)}: {bar.label}: {took}, from {since} on"

    def _arrows(self) -> Iterator[str]:
        longest = sorted(self.gantt.arrows, key=lambda a: (a.critical, a.stop_s - a.start_s))[-MOST_ARROWS:]
        for arrow in longest:
            ys = [
                self.tops[n] + self._height(self.gantt.lanes[n]) / 2
                for n in (arrow.source, arrow.destination)
            ]
            places: dict[str, object] = {
                "x1": share(arrow.start_s / self.stop_s),
                "x2": share(arrow.stop_s / self.stop_s),
            }
            places |= {"y1": ys[0], "y2": ys[1]}
            look: dict[str, object] = {"stroke": theme.CRITICAL if arrow.critical else KINDS["send"][0]}
            look["stroke_width"] = 1.6 if arrow.critical else 0.8
            look["stroke_opacity"] = None if arrow.critical else 0.5
            told = f"{arrow.label}: {readable_seconds(arrow.stop_s - arrow.start_s)} on its way"
            yield svg.element("line", **places, **look, tooltip=told)


def label_ink(kind: str) -> str:
    """Chooses the colour of words on a bar; the pale ground of what is idle or waits is dark in the dark."""
    return theme.INK if kind in {"wait", "idle"} else svg.ink_on(KINDS[kind][0])


def merged(bars: Iterable[GanttBar], *, narrow_s: float, gap_s: float | None = None) -> list[GanttBar]:
    """Joins bars of one lane that are narrow, alike and follow one another.

    Args:
        bars: by start.
        narrow_s: what lasts less is narrow.
        gap_s: what lies further apart does not follow one another; half of what is narrow if not given.
    """
    gap_s = narrow_s / 2 if gap_s is None else gap_s
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


def _sliced(bars: list[GanttBar], every: list[GanttBar], stop_s: float, most: int) -> list[GanttBar]:
    """Returns bars of a lane as they are, if they are at most so many, or slices of time in their place."""
    return bars if len(bars) <= most else sliced(every, stop_s=stop_s, slices=most)


def sliced(bars: Iterable[GanttBar], *, stop_s: float, slices: int) -> list[GanttBar]:
    """Returns what a lane mostly did in each of some slices of time; slices that are alike are joined."""
    spent: list[dict[str, float]] = [{} for _ in range(slices)]
    counts = [0] * slices
    width_s = stop_s / slices
    lane = 0
    for bar in bars:
        lane = bar.lane
        first = min(int(bar.start_s / width_s), slices - 1)
        counts[first] += 1
        for n in range(first, min(int(bar.stop_s / width_s), slices - 1) + 1):
            inside = min(bar.stop_s, (n + 1) * width_s) - max(bar.start_s, n * width_s)
            spent[n][bar.kind] = spent[n].get(bar.kind, 0.0) + inside
    mostly = [max(found, key=found.__getitem__) if found else "" for found in spent]
    runs = []
    for kind, group in groupby(enumerate(mostly), key=lambda pair: pair[1]):
        numbers = [n for n, _ in group]
        if not kind:
            continue
        label = f"mostly {KINDS[kind][1]}, {sum(counts[n] for n in numbers)} instructions"
        runs.append(GanttBar(lane, numbers[0] * width_s, (numbers[-1] + 1) * width_s, label, kind))
    return runs
