"""Curves go through their points and are named where they end, without touching."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.view.curves import HEIGHT, LEFT, LINE, WIDTH, Curve, Mark, Panel, draw_curves
from tests.view.test_plan_picture import SVG, texts, tooltips


def drawn(*curves: Curve, marks: tuple[Mark, ...] = ()) -> ElementTree.Element:
    panel = Panel(curves, ("machines", "speed-up"), (1, 2, 4), marks)
    return ElementTree.fromstring(draw_curves("title", "said", [panel]))


def test_a_curve_goes_through_its_points() -> None:
    root = drawn(Curve("a", ((1, 1), (2, 1.5), (4, 4))), marks=(Mark(2, 2, "elsewhere: 2"),))
    dots = {c.findtext(f"{SVG}title"): c.attrib for c in root.iter(f"{SVG}circle")}
    assert set(dots) == {"a: 1.00 at 1", "a: 1.50 at 2", "a: 4.00 at 4", "elsewhere: 2"}
    first, last = dots["a: 1.00 at 1"], dots["a: 4.00 at 4"]
    assert float(last["cx"]) == LEFT + WIDTH and float(first["cx"]) == LEFT + WIDTH / 4
    assert float(first["cy"]) - float(last["cy"]) == pytest.approx(HEIGHT * 3 / 4)
    assert {"machines", "speed-up", "1", "2", "4", "a", "elsewhere: 2", "title"} <= set(texts(root))


def test_what_goes_with_a_curve_has_its_colour_and_no_name() -> None:
    root = drawn(
        Curve("a", ((1, 1), (4, 3))), Curve("", ((1, 1), (4, 2)), dashed=True), Curve("b", ((1, 2),))
    )
    main, beside, other = root.findall(f"{SVG}path")
    assert main.attrib["stroke"] == beside.attrib["stroke"] != other.attrib["stroke"]
    assert "stroke-dasharray" in beside.attrib and "stroke-dasharray" not in main.attrib
    assert [tip for tip in tooltips(root) if tip.startswith(": ")] == []


@given(st.lists(st.floats(0.1, 30), min_size=1, max_size=7))
def test_names_do_not_touch(ends: list[float]) -> None:
    curves = [Curve(f"curve {n}", ((1, 1), (4, end))) for n, end in enumerate(ends)]
    names = [t for t in drawn(*curves).iter(f"{SVG}text") if (t.text or "").startswith("curve")]
    heights = sorted(float(name.attrib["y"]) for name in names)
    assert len(heights) == len(ends)
    assert all(b - a >= LINE - 0.2 for a, b in pairwise(heights))


def test_panels_lie_below_one_another() -> None:
    axes = ("machines", "speed-up")
    high, low = (
        Panel((Curve("a", ((1, 1), (4, 4))),), axes, (1, 4)),
        Panel((Curve("b", ((1, 1), (4, 2))),), axes, (1, 4), height=100),
    )
    root = ElementTree.fromstring(draw_curves("title", "said", [high, low]))
    heights = {c.findtext(f"{SVG}title"): float(c.attrib["cy"]) for c in root.iter(f"{SVG}circle")}
    assert heights["a: 4.00 at 4"] < heights["a: 1.00 at 1"] < heights["b: 2.00 at 4"]
    assert heights["b: 1.00 at 1"] - heights["b: 2.00 at 4"] == pytest.approx(50)
    assert heights["b: 1.00 at 1"] < float(root.attrib["height"])


def test_an_axis_that_doubles_goes_by_factors() -> None:
    curve = Curve("a", ((2, 1), (4, 1), (16, 2)))
    panel = Panel((curve,), ("machines", "seconds"), (2, 4, 16), doubling=True)
    root = ElementTree.fromstring(draw_curves("title", "said", [panel]))
    dots = {c.findtext(f"{SVG}title"): float(c.attrib["cx"]) for c in root.iter(f"{SVG}circle")}
    assert dots["a: 1.00 at 2"] == LEFT and dots["a: 2.00 at 16"] == LEFT + WIDTH
    assert dots["a: 1.00 at 4"] == pytest.approx(LEFT + WIDTH / 3, abs=0.1)
    assert {"2", "4", "16"} <= set(texts(root))


def test_a_curve_of_many_points_needs_no_dots() -> None:
    root = drawn(Curve("a", tuple((n / 10, n) for n in range(40)), dots=False))
    assert root.find(f"{SVG}circle") is None and len(root.findall(f"{SVG}path")) == 1
