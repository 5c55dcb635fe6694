"""Names and colours of the machines of a picture, and a pattern where there are more machines than colours.

Up to eight machines have the colours of `theme.WHO`, which people with any kind of colour vision tell apart.
More have hues in their order on an arc of OKLCH, which is as even as the eye sees it, so a machine looks like
its neighbours in number. Where several share a hue, lightness and then stripes tell them apart.
Source of OKLCH: Ottosson, *A perceptual color space for image processing*, 2020.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from partita.engine.view import svg, theme

FEW = theme.WHO
"""Colours of up to eight machines."""
HUES = 16
"""Number of hues that can still be told apart."""
FIRST_HUE, ALL_HUES = 205.0, 165.0
"""Degrees: from blue-green on down to orange. Blue, magenta and red say what a machine does, never which."""
DARK, LIGHT, CHROMA = 0.56, 0.76, 0.12
HEAD = 14.0
"""Length of the arrow head of a line that stands for many messages, in pixels."""


@dataclass(frozen=True)
class Palette:
    """The look of machines with these names, and the length of an arrow head, in pixels."""

    names: tuple[str, ...]
    arrow: float = svg.ARROW

    def colour(self, machine: int) -> str:
        """Returns the colour of a machine's pieces."""
        if len(self.names) <= len(FEW):
            return FEW[machine % len(FEW)]
        shared = self._sharing
        group, member = divmod(machine, shared)
        hue = FIRST_HUE - ALL_HUES * group / (math.ceil(len(self.names) / shared) - 1)
        dark = (group + member) % 2 == 0 if shared == 1 else member % 2 == 0
        return of_oklch(DARK if dark else LIGHT, CHROMA, hue)

    def fill(self, machine: int) -> str:
        """Returns the fill of a piece: its colour, or a pattern of it."""
        return f"url(#stripes{machine})" if self.striped(machine) else self.colour(machine)

    def striped(self, machine: int) -> bool:
        """Returns whether another machine has the same colour, so that this one has stripes."""
        return len(self.names) > len(FEW) and machine % self._sharing // 2 % 2 == 1

    def line(self, machine: int) -> str:
        """Returns the colour of a line on white: bright ones are darkened."""
        base = self.colour(machine)
        return svg.mixed(base, "#000000", 0.2) if svg.luminance(base) > 0.6 else base

    def ink(self, machine: int) -> str:
        """Returns the colour of text on a machine's pieces."""
        return svg.ink_on(self.colour(machine))

    def definitions(self) -> Iterator[str]:
        """Defines arrow heads in the colours of the machines and in grey, and patterns of stripes."""
        heads = [(f"to{machine}", self.line(machine), self.arrow) for machine in range(len(self.names))]
        for name, fill, length in (*heads, ("to", svg.SOFT, self.arrow), ("many", svg.SOFT, HEAD)):
            head, side = svg.element("path", d="M0 0L8 4L0 8Z", fill=fill), length * 9 / 8
            look = {"orient": "auto", "markerWidth": side, "markerHeight": side}
            box = {"viewBox": "0 0 8 8", "refX": 0.5, "refY": 4}  # a line ends where its head begins
            yield svg.element("marker", head, id=name, **box, **look, markerUnits="userSpaceOnUse")
        for machine in filter(self.striped, range(len(self.names))):
            base = self.colour(machine)
            ground = svg.element("rect", width=6, height=6, fill=base)
            towards = "#000000" if self.ink(machine) == "#ffffff" else "#ffffff"
            stripe = svg.element("rect", width=2, height=6, fill=svg.mixed(base, towards, 0.3))
            size = {"patternUnits": "userSpaceOnUse", "patternTransform": "rotate(45)"}
            yield svg.element("pattern", ground, stripe, id=f"stripes{machine}", width=6, height=6, **size)

    def swatch(self, machine: int, x: float, y: float, height: float = 17.0) -> str:
        """Draws a sample of the machine's fill with its number."""
        box = svg.element("rect", x=x, y=y, width=22, height=height, rx=3, fill=self.fill(machine))
        middle = y + (height + 7) / 2
        return box + svg.text(
            x + 11, middle, f"#{machine}", size=9, fill=self.ink(machine), text_anchor="middle"
        )

    @property
    def _sharing(self) -> int:
        """Number of machines that share a hue."""
        return math.ceil(len(self.names) / HUES)


@lru_cache
def of_oklch(lightness: float, chroma: float, hue: float) -> str:
    """Returns the sRGB colour of a lightness (0 to 1) and hue (degrees); paler where there is none."""
    while True:
        a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
        l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3  # noqa: E741 - as the source names it
        m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
        s = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
        channels = (
            4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
            -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
            -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s,
        )
        if all(-1e-3 <= channel <= 1 + 1e-3 for channel in channels):
            return "#" + "".join(f"{round(255 * _gamma(channel)):02x}" for channel in channels)
        chroma *= 0.95


def _gamma(channel: float) -> float:
    bounded = min(max(channel, 0.0), 1.0)
    return 12.92 * bounded if bounded <= 0.0031308 else 1.055 * bounded ** (1 / 2.4) - 0.055
