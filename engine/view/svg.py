"""SVG as text: elements with escaped contents, colours, and estimated widths of words."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from itertools import pairwise

from partita.engine.view import theme
from partita.engine.view.theme import FAINT, INK, SOFT

__all__ = ["ARROW", "FAINT", "FONT", "GLYPH", "INK", "SOFT", "curve", "document", "element", "ink_on", "line"]
__all__ += ["luminance", "middle_cut", "mixed", "number", "path", "shape_text", "shortened", "text"]
__all__ += ["text_width", "title"]

FONT = "Inter, 'Segoe UI', Helvetica, Arial, sans-serif"
ARROW = 8
"""Length of an arrow head, in pixels."""
GLYPH = 0.62
"""Width of an average glyph of a sans-serif font, over its size; wide on purpose."""


def element(tag: str, *children: str, tooltip: object = None, **attributes: object) -> str:
    """Writes an element; underscores in names become hyphens, and None leaves an attribute out."""
    if tooltip is not None:
        children = title(str(tooltip)), *children
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value) if isinstance(value, str) else number(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{written}>{''.join(children)}</{tag}>" if children else f"<{tag}{written}/>"


def document(name: str, width: float, height: float, parts: Iterable[str]) -> str:
    """Writes a picture on a card, from the back to the front, a line of text for each part."""
    card = element("rect", width=width, height=height, rx=10, fill=theme.PAPER)
    return element(
        "svg",
        *(part + "\n" for part in (title(name), element("style", theme.rules()), card, *parts)),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {number(width)} {number(height)}",
        width=width,
        height=height,
        role="img",
        font_family=FONT,
    )


def number(value: object) -> str:
    """Writes the value of an attribute; numbers with at most one digit after the point."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def path(*commands: str | float) -> str:
    """Writes the letters and numbers of a path: `M1 2H3.5`."""
    written = ""
    for command in commands:
        gap = " " if written and not isinstance(command, str) and not written[-1].isalpha() else ""
        written += gap + (command if isinstance(command, str) else number(float(command)))
    return written


def text(
    x: float | str,
    y: float,
    content: str,
    *,
    size: float = 12,
    fill: str = INK,
    full: str = "",
    **look: object,
) -> str:
    """Writes a line of text whose baseline is at y; x may be a share. The full text of one that was
    shortened is its tooltip.
    """
    written = element("text", escape(content), x=x, y=y, font_size=size, fill=fill, **look)
    return element("g", written, tooltip=full) if full not in ("", content) else written


def title(content: str) -> str:
    """Writes the tooltip of the element around it."""
    return element("title", escape(content))


def shape_text(shape: Iterable[int]) -> str:
    """Writes the shape of a grid: `28×28×1`."""
    return "×".join(map(str, shape))


def line(
    d: str, stroke: str, width: float, *, dash: str | None = None, head: str | None = None, **look: object
) -> str:
    """Draws a path as a line, with dashes and with the arrow head of this name if they are given."""
    end = head and f"url(#{head})"
    return element(
        "path", d=d, stroke=stroke, stroke_width=width, **look, stroke_dasharray=dash, marker_end=end
    )


def text_width(content: str, *, size: float = 12) -> float:
    """Estimates the width of a text, rather too wide than too narrow."""
    return len(content) * size * GLYPH


def shortened(content: str, *, most: int) -> str:
    """Cuts a text to at most so many characters."""
    return content if len(content) <= most else content[: most - 1] + "…"


def middle_cut(content: str, *, most: int) -> str:
    """Cuts a text in its middle to at most so many characters, since names often differ at their ends."""
    if len(content) <= most:
        return content
    tail = (most - 1) // 2
    return f"{content[: most - 1 - tail]}…{content[len(content) - tail :]}"


def curve(places: Iterable[tuple[float, float]]) -> str:
    """Writes a smooth line through points up or down the page; it is vertical in each of them."""
    met = list(places)
    written = path("M", *met[0])
    for (x, y), (to_x, to_y) in pairwise(met):
        middle = (y + to_y) / 2
        written += path("C", x, middle, to_x, middle, to_x, to_y)
    return written


def ink_on(fill: str) -> str:
    """Chooses the text colour that can be read on a fill."""
    return theme.ON_BRIGHT if luminance(fill) > 0.55 else "#ffffff"


def luminance(fill: str) -> float:
    """Returns how bright a colour looks, from 0 (black) to 1 (white)."""
    red, green, blue = _channels(fill)
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 255


def mixed(fill: str, other: str, share: float) -> str:
    """Mixes a colour with a share of another."""
    mixture = (round(a + (b - a) * share) for a, b in zip(_channels(fill), _channels(other), strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixture)


def _channels(fill: str) -> tuple[int, int, int]:
    return int(fill[1:3], 16), int(fill[3:5], 16), int(fill[5:7], 16)
