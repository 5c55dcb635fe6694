"""The one palette of all pictures and pages, in light and in dark.

A colour has one meaning everywhere. Blue, violet, magenta, red and grey name what a machine does (`DOING`);
orange, green, yellow and brown name who does it (`WHO`: machines of a plan, replicas in a chart).
What was predicted is pale or dashed, what was measured is full.

Pictures are written in the colours of light, as plain attributes that any program can show. `rules` gives a
browser their counterparts in the dark, by selectors of these attributes: no picture is drawn twice.
"""

from __future__ import annotations

from typing import Final

INK: Final = "#1f2933"
SOFT: Final = "#5b6671"
FAINT: Final = "#e3e8ed"
PAPER: Final = "#fefefe"
"""Ground of a picture; one step off white, so that white words on a piece stay white in the dark."""
ON_BRIGHT: Final = "#1b2229"
"""Words on a bright piece, which is as bright in the dark."""

DOING: Final = {
    "forward": ("#0072b2", "forward"),
    "backward": ("#56b4e9", "backward"),
    "update": ("#5a6acf", "weight gradients and updates"),
    "compute": ("#0072b2", "compute"),
    "other": ("#9aa5b1", "copies and sums"),
    "send": ("#b04a90", "send"),
    "receive": ("#dca3cb", "receive"),
    "transfer": ("#b04a90", "transfer"),
    "wait": ("#f2c9c3", "wait"),
    "idle": ("#e3e8ed", "idle"),
}
"""Colour of each kind of time, and its words in a legend; kinds of one colour differ in detail alone."""
CRITICAL: Final = "#c0182b"
"""The critical path of a predicted step."""
GOOD: Final = "#00734f"
WARNING: Final = "#a34400"

WHO: Final = ("#f68c36", "#356d73", "#f7e04f", "#727c28", "#b0896f", "#b5ecdc", "#73613a", "#c2c99d")
"""Colours of up to eight machines or curves, apart from one another for any kind of colour vision."""

LINES: Final = ("#c76a1e", "#356d73", "#8f7f12", "#96715a", "#727c28", "#4f9690", "#73613a")
"""Colours of who as lines on paper, dark enough to be seen on white and bright enough on black."""

_DARK: Final = {
    INK: "#e4e9ee",
    SOFT: "#a3afba",
    FAINT: "#333d46",
    PAPER: "#1d242b",
    "#0072b2": "#0c78ba",
    "#9aa5b1": "#86929e",
    "#f2c9c3": "#6d3a36",
    CRITICAL: "#ff6b78",
    GOOD: "#3ecf9b",
    WARNING: "#f0934c",
    "#356d73": "#3d7b82",
    "#73613a": "#836f43",
    "#ccd4db": "#4a5560",
    "#f4f6f8": "#262e36",
}


def dark_of(colour: str) -> str:
    """Returns the counterpart in the dark of a colour of light; itself where both are the same."""
    return _DARK.get(colour, colour)


def rules() -> str:
    """Writes the style sheet that shows pictures in the dark where the page, or the viewer, is dark."""
    written = [":root{color-scheme:light dark}"]
    for light, dark in _DARK.items():
        both = f"light-dark({light},{dark})!important"
        for name in ("fill", "stroke"):
            written.append(f'svg [{name}="{light}"],svg [style*="{name}: {light}"]{{{name}:{both}}}')
    return "".join(written)


def embedded(picture: str) -> str:
    """Returns a picture without its style sheet, for a page that has these rules once for all."""
    return picture.replace(f"<style>{rules()}</style>\n", "")
