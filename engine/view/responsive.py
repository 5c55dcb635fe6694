"""Pictures that fit any width: places across are shares of it, heights are pixels, words keep their size.

A chart has no view box, so nothing is scaled: on a telephone its bars are narrower and its words as large as
on a wall. `plot` is the area within the margins, in which 0% and 100% are the ends of an axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from html import escape
from typing import Final

from partita.engine.view import svg, theme

WIDTH: Final = 1160.0
"""Pixels across of a picture by itself; on a page it is as wide as its card."""
SIDE: Final = 14.0
"""Margin to the left and right, in pixels."""
UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def sheet(name: str, height: float, parts: Iterable[str], *, width: float = WIDTH) -> str:
    """Writes a picture of this height, on a card, that is as wide as what it is shown in."""
    card = svg.element("rect", width="100%", height="100%", rx=10, fill=theme.PAPER)
    return svg.element(
        "svg",
        *(part + "\n" for part in (svg.title(name), svg.element("style", theme.rules()), card, *parts)),
        xmlns="http://www.w3.org/2000/svg",
        width=width,
        height=height,
        role="img",
        font_family=svg.FONT,
    )


def plot(y: float, height: float, *parts: str, **look: object) -> str:
    """Writes an area between the margins, in which places across are shares of it."""
    return svg.element("svg", *parts, x=SIDE, y=y, width="95%", height=height, overflow="visible", **look)


def share(part: float) -> str:
    """Writes a place across as a share: `12.34%`."""
    return f"{100 * part:.2f}".rstrip("0").rstrip(".") + "%"


def round_ticks(stop: float, *, most: int = 9) -> tuple[float, ...]:
    """Returns at most so many steps of 1, 2 or 5 times a power of ten from 0 on, up to `stop`."""
    step = round_step(stop, most=most)
    return tuple(n * step for n in range(math.floor(stop / step * (1 + 1e-9)) + 1))


def round_step(stop: float, *, most: int) -> float:
    """Returns the least of 1, 2 or 5 times a power of ten of which `most` steps reach to `stop`."""
    raw = stop / most
    power = 10.0 ** math.floor(math.log10(raw))
    return float(next(n * power for n in (1, 2, 5, 10) if n * power >= raw * (1 - 1e-9)))


def time_unit(stop_s: float) -> tuple[float, str]:
    """Returns the unit in which an axis up to so many seconds is written: its seconds, and its name."""
    return next((unit for unit in UNITS if stop_s >= unit[0]), UNITS[-1])


def time_axis(stop_s: float, *, top: float, height: float) -> str:
    """Draws vertical lines at round times in an area of its own, with their words above."""
    unit_s, unit = time_unit(stop_s)
    step = round_step(stop_s / unit_s, most=9)
    parts = []
    for n in range(math.floor(stop_s / unit_s / step * (1 + 1e-9)) + 1):
        x = share(n * step * unit_s / stop_s)
        fine = {"class_": "fine"} if n % 2 else {}
        parts.append(svg.element("line", x1=x, x2=x, y1=0, y2=height, stroke=theme.FAINT))
        words = f"{n * step:.10g} {unit}"
        anchor = "start" if n == 0 else "middle"
        parts.append(svg.text(x, -5, words, size=10.5, fill=theme.SOFT, text_anchor=anchor, **fine))
    return plot(top, height, *parts)


def caption(name: str, words: str, *, y: float, size: float, most: int) -> str:
    """Writes a name, shortened in its middle, and words beside it; the whole name is its tooltip."""
    shown = svg.middle_cut(name, most=most)
    both = svg.element("tspan", escape(shown), font_weight=600)
    if words:
        both += svg.element("tspan", escape(words), dx=9, fill=theme.SOFT)
    look = {"x": SIDE, "y": y, "font_size": size, "fill": theme.INK, "class_": "stays"}
    return svg.element("text", both, **look, tooltip=None if shown == name else name)


def legend(entries: Iterable[tuple[str, str]], *, y: float) -> Iterator[str]:
    """Writes samples of colours with their words, in a row from the left."""
    x = SIDE
    for fill, words in entries:
        yield svg.element("rect", x=x, y=y - 10, width=12, height=12, rx=2, fill=fill)
        yield svg.text(x + 17, y, words, size=11.5, fill=theme.SOFT)
        x += 32 + svg.text_width(words, size=11.5)
