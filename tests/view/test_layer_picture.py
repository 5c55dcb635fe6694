"""The picture of a layer marks the senders that its connectivity names, and shows all rows and messages."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from partita.engine.view import svg
from partita.engine.view.cells import CELL, place_of, senders
from partita.engine.view.layer_picture import MOST_NODES, draw_layer
from partita.engine.view.marks import NODES
from partita.engine.view.palette import Palette
from partita.engine.view.travels import travels
from partita.layers import (
    Add,
    AveragePool2D,
    Dense,
    Graph,
    LocallyConnected2D,
    Network,
    SoftmaxCrossEntropy,
)
from partita.layers.connectivity import PADDING
from partita.partitioner import Cluster, Plan, partition
from tests.draws import examples
from tests.networks import networks
from tests.plans import plans
from tests.view.reading import SVG, texts


def two_local_layers(machines: int) -> Plan:
    net = Network("halo")
    below = LocallyConnected2D(2, kernel_size=3, padding="same", name="below")(
        net.input("image", shape=(8, 8, 1))
    )
    above = LocallyConnected2D(2, kernel_size=3, padding="same", name="above")(below)
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(4, name="scores")(above), net.target("digit"))
    return partition(net, Cluster.local(machines), batch=4, strategy="balanced")


def drawn(plan: Plan, layer: str, nodes: object = None) -> ElementTree.Element:
    return ElementTree.fromstring(draw_layer(plan, layer, nodes))  # type: ignore[arg-type]


def travelling(root: ElementTree.Element) -> list[str]:
    """Entries for everything that is sent."""
    return [found.findtext(f"{SVG}title", "") for found in root.iter(f"{SVG}g")]


def cells(root: ElementTree.Element, **attributes: str) -> int:
    """Number of cells that are drawn in this way."""
    found = [
        path.attrib["d"].count("z")
        for path in root.iter(f"{SVG}path")
        if all(path.get(name) == value for name, value in attributes.items())
    ]
    return sum(found)


@given(networks(losses=False, shared=True), st.data())
def test_senders_are_those_of_the_connectivity(graph: Graph, data: st.DataObject) -> None:
    """Edges into the padding come out as places outside the grid, the others as the nodes that they are."""
    grid = data.draw(st.sampled_from(graph.computed))
    node = data.draw(st.integers(0, grid.n_nodes - 1))
    for number, source in enumerate(graph[name] for name in grid.sources):
        offsets, indices = grid.wirings[number].edges((0, grid.n_rows), grid.shape, source.shape)
        heard = [int(index) for index in indices[offsets[node] : offsets[node + 1]]]
        expected = Counter(place_of(index, source.shape) for index in heard if index != PADDING)
        found = Counter(senders(grid, node, number, source.shape))
        assert expected <= found
        if len(source.shape) <= 3:
            assert (found - expected).total() == (heard.count(PADDING) if expected else 0)
            columns = source.shape[1] if len(source.shape) > 1 else 1
            assert all(
                not (0 <= row < source.n_rows and 0 <= column < columns)
                for row, column, _ in found - expected
            )


@settings(max_examples=examples(24))
@given(plans(shared=True), st.data())
def test_every_layer_of_every_plan_is_drawn_with_all_that_travels(plan: Plan, data: st.DataObject) -> None:
    grid = data.draw(st.sampled_from(plan.graph.computed))
    root = drawn(plan, grid.name)
    written = texts(root)
    owners = [piece.machine for piece in plan.ownership.of(grid.name)]
    if len(plan.cluster) > 1:
        assert {f"#{m}" for m in owners} <= set(written)
        told = travelling(root)
        assert len(told) == len(travels(plan, grid.name))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.get("x", 0)) >= 0
        assert float(rect.get("x", 0)) + float(rect.attrib["width"]) <= width
        assert float(rect.get("y", 0)) + float(rect.attrib["height"]) <= height
    for path in root.iter(f"{SVG}path"):
        for x, y in re.findall(r"M(-?[\d.]+) (-?[\d.]+)", path.attrib["d"]):
            assert 0 <= float(x) <= width
            assert 0 <= float(y) <= height


@settings(max_examples=examples(16))
@given(plans(shared=True))
def test_what_an_input_sends_is_drawn_once_for_each_layer_that_reads_it(plan: Plan) -> None:
    """Every message of states, errors, weights and summaries is in the picture of some layer."""
    assume(len(plan.cluster) > 1)
    shown = {travel.message for grid in plan.graph.computed for travel in travels(plan, grid.name)}
    assert shown == {message for message in plan.messages if message.layer}


def test_a_node_at_the_edge_reads_the_padding() -> None:
    root = drawn(two_local_layers(1), "above", [(0, 0, 0)])
    assert cells(root, fill=NODES[0]) == 2 * 4 + 1  # four senders on each of two sheets, and the node
    assert cells(root, stroke=NODES[0], fill="none") == 2 * 5
    assert "hollow cells: padding, always zero" in texts(root)


def test_senders_of_two_nodes_are_divided() -> None:
    root = drawn(two_local_layers(1), "above", [(3, 3, 0), (3, 4, 1)])
    half = f"h{svg.number(CELL / 2)}"
    halves = [p.attrib["d"].count(half + "v") for p in root.iter(f"{SVG}path") if half in p.attrib["d"]]
    assert halves == [12, 12]  # two of three columns are heard by both


def test_received_rows_are_dashed_in_the_colour_of_who_sends() -> None:
    root = drawn(two_local_layers(2), "above")
    assert {"below, rows 0:5", "below, rows 3:8", "above, rows 0:4", "above, rows 4:8"} <= set(texts(root))
    dashed = {"stroke-dasharray": "2 2", "fill": svg.mixed(Palette(("a", "b")).colour(1), "#ffffff", 0.8)}
    assert cells(root, **dashed) == 2 * 8 * 2  # rows 3 and 4, which machine 1 owns and machine 0 needs
    assert travelling(root) == ["below[3:5]: #1 to #0, 512 B", "below<above[3:5]: #0 to #1, 512 B"]


def test_where_no_patch_crosses_the_cut_nothing_travels() -> None:
    net = Network("pool")
    below = LocallyConnected2D(1, kernel_size=1, name="below")(net.input("image", shape=(8, 4, 1)))
    AveragePool2D(2, name="pool")(below)
    assert "nothing travels" in texts(
        drawn(partition(net, Cluster.local(2), batch=1, strategy="balanced"), "pool")
    )


def test_several_inputs_lie_below_one_another() -> None:
    net = Network("add")
    x = net.input("x", shape=6)
    Add(name="sum")(Dense(3, name="one")(x), Dense(3, name="other")(x))
    root = drawn(partition(net, Cluster.local(1), batch=1), "sum", [1])
    assert {"one 3", "other 3", "sum 3", "sum: Add 3 over one and other"} <= set(texts(root))
    assert cells(root, fill=NODES[0]) == 3


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    plan = two_local_layers(1)
    with pytest.raises(ValueError, match=r"there is no layer 'abov' to draw; choose one of below, above"):
        plan.draw(tmp_path / "x.svg", layer="abov")
    for node in [(0, 0), (0, 8, 0), (0, -1, 0), "middle", 3]:
        with pytest.raises(ValueError, match=r"there is no node .* in a grid of \(8, 8, 2\)"):
            plan.draw(tmp_path / "x.svg", layer="above", nodes=[node])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="name the layer too"):
        plan.draw(tmp_path / "x.svg", nodes=[(0, 0, 0)])
    net = Network("large")
    Dense(MOST_NODES, name="large")(net.input("x", shape=1))
    with pytest.raises(ValueError, match=r"'large' and its inputs have 2,001 nodes, and at most 2,000"):
        draw_layer(partition(net, Cluster.local(1), batch=1), "large")
    assert list(tmp_path.iterdir()) == []


def test_a_layer_is_written_to_a_file(tmp_path: Path) -> None:
    plan = two_local_layers(2)
    target = plan.draw(tmp_path / "above.svg", layer="above", nodes=[(3, 2, 0)])
    assert target.read_text(encoding="utf-8") == draw_layer(plan, "above", [(3, 2, 0)])
