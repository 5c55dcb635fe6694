"""A step as a picture: for each machine a lane for every kernel thread and one for its messenger.

It takes bars, and knows neither plans nor where the bars come from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from partita.engine.profile.timeline import Bar, Kind, Timeline
from partita.engine.runtime.trace import MESSENGER
from partita.partitioner.drawing import svg

WIDTH: Final = 1000.0
LEFT: Final = 104.0
RIGHT: Final = 16.0
KERNEL_HEIGHT: Final = 18.0
MESSENGER_HEIGHT: Final = 9.0
GAP: Final = 10.0
AXIS: Final = 26.0
THINNEST: Final = 0.4
"""Pixels: bars of one kind that follow one another within it are drawn as one."""
MOST_FLIGHTS: Final = 300
"""More lines of messages would only be a grey field."""

COLOURS: Final = {
    Kind.UP: "#0072b2",
    Kind.DOWN: "#e69f00",
    Kind.LEARN: "#009e73",
    Kind.OTHER: "#7a7a7a",
    Kind.SEND: "#cc79a7",
    Kind.RECEIVE: "#56b4e9",
    Kind.WAIT: "#f6d9d0",
}
"""Okabe and Ito's, which people with any kind of colour vision tell apart."""
WORDS: Final = {
    Kind.UP: "states",
    Kind.DOWN: "errors",
    Kind.LEARN: "learning",
    Kind.OTHER: "feeding, adding",
    Kind.SEND: "sending",
    Kind.RECEIVE: "taking in",
    Kind.WAIT: "waiting for a message",
}


def lanes(timeline: Timeline, *, name: str, until_s: float) -> str:
    """The picture.

    Args:
        timeline: the step.
        name: for those who cannot see it.
        until_s: the end of the axis, which pictures to be compared share.
    """
    return _Lanes(timeline, until_s).picture(name)


def legend() -> str:
    """What the colours mean, as a picture of one line."""
    parts, x = [], 0.0
    for kind, words in WORDS.items():
        parts.append(svg.element("rect", x=x, y=2.0, width=12, height=12, rx=2, fill=COLOURS[kind]))
        parts.append(svg.text(x + 17, 12.5, words, size=12, fill=svg.SOFT))
        x += 17 + svg.text_width(words) + 18
    return svg.document("what the colours mean", x, 18, parts)


class _Lanes:
    def __init__(self, timeline: Timeline, until_s: float) -> None:
        self.timeline = timeline
        self.scale = (WIDTH - LEFT - RIGHT) / until_s if until_s else 0.0
        self.until_s = until_s
        self.threads = [self._threads(m) for m in range(len(timeline.machines))]
        self.tops, y = [], 8.0
        for threads in self.threads:
            self.tops.append(y)
            y += (len(threads) - 1) * (KERNEL_HEIGHT + 2) + MESSENGER_HEIGHT + GAP
        self.bottom = y

    def picture(self, name: str) -> str:
        parts = [*self._axis(), *self._names(), *self._waits(), *self._bars(), *self._flights()]
        return svg.document(name, WIDTH, self.bottom + AXIS, parts)

    def _threads(self, machine: int) -> list[int]:
        """Kernel threads first, the messenger last."""
        met = {bar.thread for bar in self.timeline.bars if bar.machine == machine} | {
            MESSENGER,
            MESSENGER + 1,
        }
        return [*sorted(met - {MESSENGER}), MESSENGER]

    def _x(self, seconds: float) -> float:
        return LEFT + seconds * self.scale

    def _lane(self, machine: int, thread: int) -> tuple[float, float]:
        """Top and height."""
        top = self.tops[machine] + self.threads[machine].index(thread) * (KERNEL_HEIGHT + 2)
        return top, MESSENGER_HEIGHT if thread == MESSENGER else KERNEL_HEIGHT

    def _axis(self) -> Iterator[str]:
        step, unit, factor = ticks(self.until_s)
        for n in range(int(self.until_s / step + 1e-9) + 1 if step else 0):
            x = self._x(n * step)
            yield svg.element("line", x1=x, x2=x, y1=4.0, y2=self.bottom, stroke=svg.FAINT)
            label = f"{n * step * factor:g}" + (f" {unit}" if n == 0 else "")
            yield svg.text(x, self.bottom + 15, label, size=11, fill=svg.SOFT, text_anchor="middle")
        end = self._x(self.timeline.step_s)
        yield svg.element(
            "line", x1=end, x2=end, y1=2.0, y2=self.bottom, stroke=svg.INK, stroke_dasharray="3 3"
        )

    def _names(self) -> Iterator[str]:
        for machine, name in enumerate(self.timeline.machines):
            y = self._lane(machine, self.threads[machine][0])[0] + KERNEL_HEIGHT - 5
            yield svg.text(LEFT - 10, y, svg.shortened(name, most=13), size=12, text_anchor="end")

    def _waits(self) -> Iterator[str]:
        for machine in range(len(self.timeline.machines)):
            top, _ = self._lane(machine, self.threads[machine][0])
            height = (len(self.threads[machine]) - 1) * (KERNEL_HEIGHT + 2) - 2
            for start, stop in self.timeline.waits(machine):
                if (stop - start) * self.scale >= THINNEST:
                    yield self._rect(top, height, start, stop, Kind.WAIT, "waits for a message")

    def _bars(self) -> Iterator[str]:
        for bar in _merged(self.timeline.bars, THINNEST / self.scale if self.scale else 0.0):
            top, height = self._lane(bar.machine, bar.thread)
            yield self._rect(top, height, bar.start_s, bar.stop_s, bar.kind, bar.text)

    def _rect(self, top: float, height: float, start: float, stop: float, kind: Kind, text: str) -> str:
        told = svg.title(f"{text} · {1e3 * start:.3f} to {1e3 * stop:.3f} ms")
        width = max((stop - start) * self.scale, THINNEST)
        return _box(self._x(start), top, width, height, COLOURS[kind], told)

    def _flights(self) -> Iterator[str]:
        if len(self.timeline.flights) > MOST_FLIGHTS:
            return
        for flight in self.timeline.flights:
            top, height = self._lane(flight.source, MESSENGER)
            to, _ = self._lane(flight.destination, MESSENGER)
            yield svg.element(
                "line",
                svg.title(f"{flight.label} · on its way {1e3 * (flight.arrived_s - flight.sent_s):.3f} ms"),
                x1=self._x(flight.sent_s),
                y1=top + height / 2,
                x2=self._x(flight.arrived_s),
                y2=to + height / 2,
                stroke=svg.SOFT,
                stroke_width=0.8,
                stroke_opacity=0.6,
            )


def _box(x: float, y: float, width: float, height: float, fill: str, *children: str) -> str:
    """A rectangle whose width keeps two digits: many bars are less than a pixel wide."""
    return svg.element("rect", *children, x=f"{x:.2f}", y=y, width=f"{width:.2f}", height=height, fill=fill)


def _merged(bars: tuple[Bar, ...], closer_s: float) -> Iterator[Bar]:
    """The same, where bars of one kind in one lane that nearly touch and are thin are drawn as one."""
    last: dict[tuple[int, int], Bar] = {}
    for bar in bars:
        lane = bar.machine, bar.thread
        before = last.get(lane)
        thin = bar.stop_s - bar.start_s < closer_s
        if before and thin and before.kind == bar.kind and bar.start_s - before.stop_s < closer_s:
            last[lane] = replace(before, stop_s=bar.stop_s, text=f"{before.label} and more")
            continue
        if before:
            yield before
        last[lane] = bar
    yield from last.values()


def ticks(until: float, *, most: int = 12) -> tuple[float, str, float]:
    """Seconds between two ticks of an axis, the unit of their labels, and by what seconds are multiplied."""
    if until <= 0:
        return 0.0, "s", 1.0
    power = 10.0 ** math.floor(math.log10(until / most))
    step = next(power * m for m in (1, 2, 5, 10) if until / (power * m) <= most)
    unit, factor = ("s", 1.0) if until >= 1 else ("ms", 1e3) if until >= 1e-3 else ("us", 1e6)
    return step, unit, factor
