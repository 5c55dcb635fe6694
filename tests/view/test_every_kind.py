"""Pictures of every kind of layer, cut over three machines: no words and no pieces cover others."""

from __future__ import annotations

from itertools import combinations
from xml.etree import ElementTree

import pytest

from partita.engine.view.layer_picture import draw_layer
from partita.engine.view.plan_picture import draw_plan
from partita.engine.view.svg import text_width
from partita.partitioner import Cluster, Plan, partition
from tests.every_kind import pictures, sequences
from tests.view.reading import SVG, box, shapes

Sides = tuple[float, float, float, float]
PLANS = {
    declare.__name__: partition(declare(), Cluster.local(3), batch=8, strategy="balanced")
    for declare in (sequences, pictures)
}
OF_ANY = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
LAYERS = [(plan, grid.name) for plan in PLANS.values() for grid in plan.graph.computed]
_NARROW = 0.8
"""Share of `text_width`, which is wide on purpose, that words surely take."""


def covering(sides: dict[str, Sides]) -> list[tuple[str, str]]:
    """Pairs of rectangles with a common area."""
    return [
        (one, other)
        for (one, a), (other, b) in combinations(sides.items(), 2)
        if min(a[2], b[2]) - max(a[0], b[0]) > 0.5 and min(a[3], b[3]) - max(a[1], b[1]) > 0.5
    ]


def words_of(root: ElementTree.Element) -> dict[str, Sides]:
    """Where words stand that are not turned: from the baseline to the height of a small letter."""
    found = {}
    for n, one in enumerate(root.iter(f"{SVG}text")):
        if "transform" in one.attrib:
            continue
        size, words = float(one.attrib["font-size"]), "".join(one.itertext())
        width = _NARROW * text_width(words, size=size)
        before = {"middle": width / 2, "end": width}.get(one.get("text-anchor", "start"), 0.0)
        left, base = float(one.attrib["x"]) - before, float(one.attrib["y"])
        found[f"{n}: {words}"] = (left, base - 0.5 * size, left + width, base)
    return found


def _piece(shape: ElementTree.Element) -> Sides:
    """Where a piece lies: its rectangle, or the path of one with a summary's mark."""
    inner = next(one for one in shape.iter() if one.tag in (f"{SVG}rect", f"{SVG}path"))
    return box(inner)


@OF_ANY
def test_in_the_picture_of_a_plan_nothing_covers_another(plan: Plan) -> None:
    root = ElementTree.fromstring(draw_plan(plan))
    pieces = {words: _piece(shape) for words, shape in shapes(root).items() if ": rows " in words}
    assert len(pieces) == len(plan.pieces)
    assert covering(pieces) == []
    assert covering(words_of(root)) == []


@pytest.mark.parametrize(("plan", "layer"), LAYERS, ids=[name for _, name in LAYERS])
def test_in_the_picture_of_a_layer_no_words_cover_others(plan: Plan, layer: str) -> None:
    root = ElementTree.fromstring(draw_layer(plan, layer))
    assert covering(words_of(root)) == []
