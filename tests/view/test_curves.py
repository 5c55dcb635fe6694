"""Curves go through their points and are named where they end, without touching."""

from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree

import matplotlib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.view import theme
from partita.engine.view.curves import (
    HEIGHT,
    LEFT,
    LINE,
    WIDTH,
    Curve,
    Mark,
    Panel,
    draw_curves,
    round_ticks,
)
from tests.draws import examples
from tests.view.reading import SVG, numbers, shapes, style, texts, tooltips


def drawn(*curves: Curve, marks: tuple[Mark, ...] = (), **panel: object) -> ElementTree.Element:
    found = Panel(curves, ("machines", "speed-up"), (1, 2, 4), marks, **panel)  # type: ignore[arg-type]
    return ElementTree.fromstring(draw_curves("title", "said", [found]))


def places(root: ElementTree.Element) -> dict[str, tuple[float, float]]:
    """Positions of the dots and rings, by their tooltips."""
    dots = {told: dot.attrib for told, dot in shapes(root).items() if dot.tag == f"{SVG}use"}
    return {told: (float(dot["x"]), float(dot["y"])) for told, dot in dots.items()}


def lines(root: ElementTree.Element) -> list[ElementTree.Element]:
    """The curves: what is drawn in a colour of the palette."""
    grey = {theme.FAINT, theme.SOFT, theme.INK}
    paths = [p for p in root.iter(f"{SVG}path") if style(p).get("stroke", "").startswith("#")]
    return [p for p in paths if style(p)["stroke"] not in grey and style(p).get("fill") == "none"]


def test_a_curve_goes_through_its_points() -> None:
    root = drawn(Curve("a", ((1, 1), (2, 1.5), (4, 4))), marks=(Mark(2, 2, "elsewhere: 2"),))
    dots = places(root)
    assert set(dots) == {"a: 1.00 at 1", "a: 1.50 at 2", "a: 4.00 at 4", "elsewhere: 2"}
    first, last = dots["a: 1.00 at 1"], dots["a: 4.00 at 4"]
    assert last[0] == pytest.approx(LEFT + WIDTH) and first[0] == pytest.approx(LEFT + WIDTH / 4)
    assert first[1] - last[1] == pytest.approx(HEIGHT * 3 / 4)
    assert numbers(lines(root)[0]) == pytest.approx([*first, *dots["a: 1.50 at 2"], *last])
    assert {"machines", "speed-up", "1", "2", "4", "a", "elsewhere: 2", "title"} <= set(texts(root))


def test_what_goes_with_a_curve_has_its_colour_and_no_name() -> None:
    root = drawn(
        Curve("a", ((1, 1), (4, 3))), Curve("", ((1, 1), (4, 2)), dashed=True), Curve("b", ((1, 2),))
    )
    main, beside, other = map(style, lines(root))
    assert main["stroke"] == beside["stroke"] != other["stroke"]
    assert "stroke-dasharray" in beside and "stroke-dasharray" not in main
    assert [tip for tip in tooltips(root) if tip.startswith(": ")] == []


@settings(max_examples=examples(12))
@given(st.lists(st.floats(0.1, 30), min_size=1, max_size=7))
def test_names_do_not_touch(ends: list[float]) -> None:
    curves = [Curve(f"curve {n}", ((1, 1), (4, end))) for n, end in enumerate(ends)]
    root = drawn(*curves)
    found = shapes(root)
    heights = sorted(float(found[f"curve {n}"].attrib["y"]) for n in range(len(ends)))
    assert all(b - a >= LINE - 0.2 for a, b in pairwise(heights))


def test_a_long_name_is_shortened_and_given_in_full() -> None:
    root = drawn(Curve("n" * 200, ((1, 1), (4, 4))))
    assert "n" * 200 in tooltips(root) and "n" * 200 not in texts(root)
    assert float(root.attrib["width"]) < 1_400


def test_panels_lie_below_one_another() -> None:
    axes = ("machines", "speed-up")
    high, low = (
        Panel((Curve("a", ((1, 1), (4, 4))),), axes, (1, 4)),
        Panel((Curve("b", ((1, 1), (4, 2))),), axes, (1, 4), height=100),
    )
    root = ElementTree.fromstring(draw_curves("title", "said", [high, low]))
    heights = {told: y for told, (_, y) in places(root).items()}
    assert heights["a: 4.00 at 4"] < heights["a: 1.00 at 1"] < heights["b: 2.00 at 4"]
    assert heights["b: 1.00 at 1"] - heights["b: 2.00 at 4"] == pytest.approx(50)
    assert heights["b: 1.00 at 1"] < float(root.attrib["height"])


def test_an_axis_that_doubles_goes_by_factors() -> None:
    curve = Curve("a", ((2, 1), (4, 1), (16, 2)))
    panel = Panel((curve,), ("machines", "seconds"), (2, 4, 16), doubling=True)
    root = ElementTree.fromstring(draw_curves("title", "said", [panel]))
    dots = {told: x for told, (x, _) in places(root).items()}
    assert dots["a: 1.00 at 2"] == pytest.approx(LEFT)
    assert dots["a: 2.00 at 16"] == pytest.approx(LEFT + WIDTH)
    assert dots["a: 1.00 at 4"] == pytest.approx(LEFT + WIDTH / 3)
    assert {"2", "4", "16"} <= set(texts(root))


def test_a_curve_of_many_points_needs_no_dots() -> None:
    root = drawn(Curve("a", tuple((n / 10, n) for n in range(40)), dots=False))
    assert places(root) == {} and len(numbers(lines(root)[0])) == 80


def test_the_same_curves_have_the_same_bytes_and_names_are_no_formulas() -> None:
    panel = Panel((Curve("cost in $ of a $ < &", ((1, 1), (4, 4))),), ("x_$1$", "y"), (1, 4))
    once = draw_curves("title", "said", [panel])
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.facecolor": "black"}):
        assert once == draw_curves("title", "said", [panel]), "a user's settings do not matter"
    assert {"cost in $ of a $ < &", "x_$1$"} <= set(texts(ElementTree.fromstring(once)))


@given(st.floats(1e-6, 1e6), st.integers(4, 9))
def test_ticks_are_round_and_neither_few_nor_many(stop: float, most: int) -> None:
    ticks = round_ticks(stop, most=most)
    assert ticks[0] == 0 and 2 <= len(ticks) <= most + 1 and 0.5 * stop < ticks[-1] <= stop * (1 + 1e-9)
    digits = ticks[1] / 10 ** math.floor(math.log10(ticks[1]) + 1e-9)
    assert round(digits, 6) in (1, 2, 5)
