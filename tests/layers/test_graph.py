"""The finished network: who listens to whom, where errors go, and that it travels."""

from __future__ import annotations

import pickle

import networkx
import pytest

from partita.layers import (
    Activation,
    Add,
    Box,
    Dense,
    Graph,
    HalfSquaredError,
    LocallyConnected2D,
    MaxPool2D,
    Network,
    SoftmaxCrossEntropy,
)


def branching() -> Graph:
    net = Network("branching")
    image = net.input("image", shape=(4, 4, 1))
    pooled = MaxPool2D(2, name="pooled")(image)  # nothing below it learns
    low = Dense(6, name="low")(pooled)
    high = Activation("relu", name="high")(low)
    joined = Add(name="joined")(low, high)
    net.loss = (
        SoftmaxCrossEntropy(name="which")(joined, net.target("label")),
        HalfSquaredError(name="how_much")(Dense(1, name="size")(joined), net.target("amount")),
    )
    return net.graph()


def test_topological_order_and_lookup() -> None:
    graph = branching()
    seen: set[str] = set()
    for grid in graph.grids:
        assert set(grid.sources) <= seen
        seen.add(grid.name)
    assert "low" in graph
    assert "nobody" not in graph
    assert graph["low"].n_nodes == 6
    assert graph["image"].nodes_per_row == 4
    assert {grid.name for grid in graph.targets} == {"label", "amount"}
    assert graph.scores == ("joined", "size")


def test_errors_go_where_something_learns() -> None:
    assert branching().needs_gradient == {"low", "high", "joined", "which", "size", "how_much"}


def test_consumers_in_the_order_of_the_graph() -> None:
    graph = branching()
    assert graph.consumers("low") == (("high", 0), ("joined", 0))
    assert graph.consumers("label") == (("which", 1),)
    assert graph.consumers("which") == ()


def test_parameters_have_full_names() -> None:
    graph = branching()
    assert list(graph.parameters) == ["low.weight", "low.bias", "size.weight", "size.bias"]
    assert graph.n_parameters == 6 * 4 + 6 + 6 + 1


def test_source_rows_of_inputs_and_targets() -> None:
    graph = branching()
    assert graph.source_rows("pooled", Box.of_rows(1, 2), 0).spans == ((2, 4),)
    assert graph.source_rows("joined", Box.of_rows(1, 3), 1).spans == ((1, 3),)
    assert graph.source_rows("which", Box.of_rows(0, 1), 1).spans == ((0, 1),)


def test_the_whole_network_is_a_directed_graph() -> None:
    digraph = branching().digraph
    assert isinstance(digraph, networkx.DiGraph)
    assert networkx.is_directed_acyclic_graph(digraph)
    assert digraph.name == "branching"
    assert digraph.nodes["low"]["shape"] == (6,)
    assert digraph.edges["high", "joined"]["input"] == 1
    assert networkx.has_path(digraph, "image", "how_much")


def test_a_layer_that_reads_an_input_twice_has_two_edges() -> None:
    net = Network("twice")
    x = Dense(2, name="x")(net.input("in", shape=2))
    Add(name="sum")(x, x)
    digraph = net.graph().digraph
    assert digraph.number_of_edges("x", "sum") == 2
    assert {data["input"] for _, _, data in digraph.edges("x", data=True)} == {0, 1}


def test_it_can_be_pickled_and_is_equal_afterwards() -> None:
    graph = branching()
    again = pickle.loads(pickle.dumps(graph))
    assert again == graph
    assert hash(again) == hash(graph)


def test_the_fingerprint_is_of_the_shapes() -> None:
    assert branching().fingerprint == branching().fingerprint
    net = Network("branching")
    Dense(7, name="low")(net.input("image", shape=4))
    assert net.graph().fingerprint != branching().fingerprint


def test_it_is_immutable() -> None:
    with pytest.raises(AttributeError):
        branching().name = "other"  # type: ignore[misc]


def test_bytes_of_a_node_are_its_parameters_once_and_its_state_for_each_example() -> None:
    net = Network("sized")
    picture = net.input("picture", shape=(6, 6, 2))
    net.loss = HalfSquaredError()(Dense(3)(LocallyConnected2D(4, 3)(picture)), net.target("wanted"))
    graph = net.graph()
    assert graph["locally_connected_2d"].bytes_per_node(batch=8, item_bytes=4) == (3 * 3 * 2 + 1 + 8) * 4
    assert graph["dense"].bytes_per_node(batch=8, item_bytes=2) == (4 * 4 * 4 + 1 + 8) * 2
