"""A figure of matplotlib in the one style of all charts, measured in SVG pixels and written as SVG text.

Text stays text, in fonts of the viewer. Widths of words are estimated by `svg.text_width`, and nothing
depends on installed fonts, on a user's `matplotlibrc` or on the time: same input, same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from partita.engine.view import svg, theme

STYLE: Final = Path(__file__).with_name("charts.mplstyle")
POINTS: Final = 72.0
"""Pixels of an inch: a point of matplotlib is a pixel of the picture."""
MARGIN: Final = 28.0
"""Pixels around the whole chart."""
PALETTE: Final = theme.LINES
"""Colours of curves, in the order in which they are given out."""
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


class Canvas:
    """A picture under construction. Sizes are in pixels, places count from the left upper corner.

    The title is for readers that cannot see the picture.
    """

    def __init__(self, title: str, width: float, height: float) -> None:
        self.title, self.width, self.height = title, width, height
        self.figure = Figure(figsize=(width / POINTS, height / POINTS), dpi=POINTS, facecolor="none")
        self.svg = ""
        self._tooltips: dict[str, Sequence[str]] = {}
        self._inserted: dict[str, str] = {}

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Adds a plot to the chart."""
        box = left / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height
        return self.figure.add_axes(box)

    def text(
        self, x: float, y: float, words: str, *, size: float = 12, tooltip: str | None = None, **look: Any
    ) -> None:
        """Adds a line of text whose baseline is at y."""
        place = x / self.width, 1 - y / self.height
        artist = self.figure.text(*place, words, fontsize=size, **({"color": svg.INK} | look))
        if tooltip is not None:
            self.tooltips(artist, [tooltip])

    def box(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        """Adds a filled rectangle above the plots."""
        size = width / self.width, height / self.height
        corner = x / self.width, 1 - (y + height) / self.height
        self.figure.add_artist(Rectangle(corner, *size, facecolor=fill, zorder=2))

    def heading(self, title: str, subtitle: str) -> None:
        """Writes the title, and the subtitle below it."""
        self.text(MARGIN, MARGIN + 16, title, size=20, fontweight=700)
        self.text(MARGIN, MARGIN + 37, subtitle, color=svg.SOFT)

    def tooltips(self, artist: Artist, words: Sequence[str]) -> None:
        """Sets what a viewer shows for each shape of an artist, in the order in which they are drawn."""
        name = f"told{len(self._tooltips)}"
        artist.set_gid(name)
        self._tooltips[name] = words

    def insert(self, axes: Axes, shapes: Iterable[str], *, zorder: float) -> None:
        """Inserts elements of SVG into a plot: thousands of shapes, each with its tooltip, at once."""
        name = f"inserted{len(self._inserted)}"
        axes.add_collection(PolyCollection([], gid=name, zorder=zorder))
        self._inserted[name] = "\n".join(shapes)

    def finish(self) -> None:
        """Writes the picture into `svg`."""
        file = BytesIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        self.figure.savefig(file, format="svg", metadata=nothing)
        root = ElementTree.fromstring(file.getvalue().replace(b"'DejaVu Sans'", svg.FONT.encode()))
        for name, words in self._tooltips.items():
            self._tell(root, name, words)
        for child in list(root):  # metadata, and a style sheet that would rule the page around the picture
            if child.tag == f"{{{_SVG}}}metadata" or child.find(f"{{{_SVG}}}style") is not None:
                root.remove(child)
        for group in root.iter(f"{{{_SVG}}}g"):
            name = group.attrib.pop("id", "")
            if name.startswith(("axes", "fine")):
                group.set("class", "time" if name.startswith("axes") else "fine")
            elif name in self._inserted:
                group.set("class", name)
            elif name == "figure_1":
                for child in group:
                    child.set("class", "stays")
        size = {"width": svg.number(self.width), "height": svg.number(self.height)}
        card = ElementTree.Element(f"{{{_SVG}}}rect", {**size, "rx": "10", "fill": theme.PAPER})
        style = ElementTree.Element(f"{{{_SVG}}}style")
        style.text = theme.rules()
        root[:0] = [_title(self.title), style, card]
        root.attrib.update(size, role="img", **{"stroke-linejoin": "round"})
        self.svg = ElementTree.tostring(root, encoding="unicode")
        for name, shapes in self._inserted.items():
            self.svg = self.svg.replace(f'<g class="{name}" />', f"<g>{shapes}</g>", 1)

    def _tell(self, root: ElementTree.Element, name: str, words: Sequence[str]) -> None:
        found = root.find(f".//{{{_SVG}}}g[@id='{name}']")
        assert found is not None, f"there is no shape for the tooltips {words}"
        shapes = next(filter(None, (found.findall(f".//{{{_SVG}}}{tag}") for tag in ("use", "text", "path"))))
        for shape, told in zip(shapes, words, strict=True):
            shape.insert(0, _title(told))


def _title(words: str) -> ElementTree.Element:
    title = ElementTree.Element(f"{{{_SVG}}}title")
    title.text = words
    return title


@contextmanager
def canvas(title: str, width: float, height: float) -> Iterator[Canvas]:
    """Opens a picture in the style of all charts; its `svg` is there when the block is left."""
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    with matplotlib.rc_context(fname=STYLE):
        found = Canvas(title, width, height)
        yield found
        found.finish()
