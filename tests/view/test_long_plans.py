"""Long networks fold and go on in columns, wide ones keep their labels apart; nothing is lost on the way."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.view import boxes, svg
from partita.engine.view.folds import FOLDED, LEAST, runs, sketched
from partita.engine.view.layout import Wiring, columns_for, ranks_of, split
from partita.engine.view.plan_picture import draw_plan
from partita.engine.view.routes import route
from partita.layers import Add, Dense, Graph, HalfSquaredError, Network
from partita.partitioner import Cluster, Plan, RowSplit, Whole, partition
from tests.draws import examples
from tests.networks import networks
from tests.view.reading import SVG, texts, tooltips


def chain(widths: list[int], *, machines: int, cuts: dict[str, RowSplit | Whole] | None = None) -> Plan:
    """Dense layers one on the other."""
    net = Network("chain")
    states = net.input("x", shape=3)
    for n, width in enumerate(widths):
        states = Dense(width, name=f"dense{n}")(states)
    net.loss = HalfSquaredError(name="loss")(states, net.target("y"))
    return partition(net, Cluster.local(machines), batch=1, cuts=cuts, strategy="balanced")


def residual(blocks: int) -> Plan:
    """Sums of a dense layer and of what it listens to."""
    net = Network("residual")
    states = Dense(4, name="stem")(net.input("x", shape=3))
    for n in range(blocks):
        states = Add(name=f"sum{n}")(Dense(4, name=f"dense{n}")(states), states)
    return partition(net, Cluster.local(2), batch=1, strategy="balanced")


def bars(root: ElementTree.Element) -> Counter[str]:
    """Number of bars for each layer's pieces."""
    found = (re.match(r"(\w+): rows \d+:\d+ of", tip) for tip in tooltips(root))
    return Counter(match[1] for match in found if match)


@given(st.lists(st.sampled_from("abc"), max_size=40))
def test_a_run_is_a_block_that_repeats_and_runs_do_not_overlap(signatures: list[Hashable]) -> None:
    end = 0
    for start, period, times in runs(signatures):
        assert start >= end and period * (times - 1) >= LEAST
        end = start + period * times
        assert end <= len(signatures)
        block = signatures[start : start + period]
        assert signatures[start:end] == block * times


def test_equal_layers_fold_into_one_that_says_how_many() -> None:
    root = ElementTree.fromstring(draw_plan(chain([4] * 40, machines=2)))
    assert bars(root) == {"dense0": 2, "dense1": 2, "loss": 2}
    assert {"39 ×", "to dense39"} <= set(texts(root))
    assert "39 × the same: dense1 to dense39; their cuts and messages are the same too" in tooltips(root)


def test_blocks_with_skips_fold() -> None:
    root = ElementTree.fromstring(draw_plan(residual(20)))
    assert bars(root) == dict.fromkeys(("stem", "dense0", "sum0", "dense19", "sum19"), 2)
    assert "19 ×" in texts(root)


def test_what_is_cut_differently_is_drawn_by_itself() -> None:
    odd = {"dense20": RowSplit(2, sizes=(1, 3))}
    shown = set(bars(ElementTree.fromstring(draw_plan(chain([4] * 40, machines=2, cuts=odd)))))
    assert {"dense20", "dense21"} < shown  # its listener receives other rows
    assert len(shown) < 10


def test_a_network_of_few_layers_is_not_folded() -> None:
    plan = chain([4] * (FOLDED - 2), machines=2)
    assert sketched(plan.ownership, [route(plan.ownership, m) for m in plan.messages]).folds == ()


@pytest.mark.parametrize("machines", [1, 3])
def test_a_tall_picture_goes_on_in_columns_and_loses_nothing(machines: int) -> None:
    plan = chain([4 + n for n in range(60)], machines=machines)
    root = ElementTree.fromstring(draw_plan(plan))
    assert bars(root) == Counter(piece.layer for piece in plan.pieces)
    again = [tip for tip in tooltips(root) if tip.endswith("shown again")]
    headings = [words for words in texts(root) if words.startswith("column ")]
    assert len(headings) == len(again) + 1 >= 3
    lines = [tip for tip in tooltips(root) if re.match(r"(activations|gradients|summary) of ", tip)]
    assert len(lines) == len(plan.messages)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert 0.5 < width / height < 3


@settings(max_examples=examples(12))
@given(networks(max_layers=9), st.integers(1, 3))
def test_columns_hold_each_layer_once_above_all_its_inputs(graph: Graph, count: int) -> None:
    fed = frozenset(grid.name for grid in graph.grids if grid.is_placeholder)
    wiring = Wiring({grid.name: grid.sources for grid in graph.grids}, fed)
    ranks = ranks_of(wiring)
    columns = split(wiring, ranks, min(count, max(ranks.values())))
    placed: list[str] = []
    for number, column in enumerate(columns):
        own = [name for name in column.wiring.sources if name not in column.again | dict.fromkeys(fed, 0)]
        placed += own
        assert all(other < number for other in column.again.values())
        for name in own:
            assert column.wiring.sources[name] == wiring.sources[name]
            assert all(column.ranks[source] < column.ranks[name] for source in wiring.sources[name])
    assert sorted(placed) == sorted(set(wiring.sources) - fed)


def test_columns_are_as_many_as_make_the_page_a_page() -> None:
    assert columns_for(10, 100, 9_000) == 1  # never broken up
    assert columns_for(100, 500, 10_000) == 5
    assert columns_for(100, 10_000, 500) == 1


@pytest.mark.parametrize("machines", [12, 40, 64])
def test_no_label_is_wider_than_its_piece(machines: int) -> None:
    root = ElementTree.fromstring(draw_plan(chain([2560, 64], machines=machines)))
    pieces = [g for g in root.iter(f"{SVG}g") if re.match(r"\w+: rows", g.findtext(f"{SVG}title", ""))]
    assert len(pieces) == 3 * machines
    for group in pieces:
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        for label in group.iter(f"{SVG}text"):
            size = float(label.attrib["font-size"])
            assert svg.text_width(label.text or "", size=size) <= float(rect.attrib["width"]) + 2.5
            assert "#" in (label.text or "") or size == boxes.ROWS_SIZE or machines > 30
