"""Colours can be read in light and dark, and each has one meaning."""

from __future__ import annotations

from itertools import combinations

import pytest

from partita.engine.view import svg, theme
from partita.engine.view.gantt import label_ink


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    channels = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [lambda colour: colour, theme.dark_of], ids=["light", "dark"])
def test_words_and_lines_are_seen(mode: object) -> None:
    of = mode
    paper = of(theme.PAPER)  # type: ignore[operator]
    for words in (theme.INK, theme.SOFT, theme.GOOD, theme.WARNING, theme.CRITICAL):
        assert contrast(of(words), paper) >= 4.5, words  # type: ignore[operator]
    for line in theme.LINES:
        assert contrast(of(line), paper) >= 3, line  # type: ignore[operator]
    for kind in theme.DOING:
        ink = label_ink(kind)
        assert contrast(of(ink), of(theme.DOING[kind][0])) >= 4.5, kind  # type: ignore[operator]
    for who in theme.WHO:
        assert contrast(of(svg.ink_on(who)), of(who)) >= 4.5, who  # type: ignore[operator]


def test_who_and_what_share_no_colour() -> None:
    doing = {colour for colour, _ in theme.DOING.values()}
    assert not doing & {*theme.WHO, *theme.LINES, theme.CRITICAL}
    assert len(set(theme.WHO)) == 8


def test_every_rule_of_the_dark_is_a_pair() -> None:
    rules = theme.rules()
    for colour in (theme.INK, theme.PAPER, theme.DOING["forward"][0]):
        assert f'svg [fill="{colour}"]' in rules and f"light-dark({colour},{theme.dark_of(colour)})" in rules
    assert all(a != b for a, b in combinations((theme.PAPER, theme.dark_of(theme.PAPER), theme.INK), 2))
