"""Nodes of a user's own: how they are declared, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from partita.layers import Connectivity, Edges, Full, Network, Node, OneToOne, Patch, node, per_edge, per_node
from partita.layers.node import NodeKind


def kind(wiring: Connectivity) -> NodeKind:
    @node(wiring, weight=per_edge("he"), bias=per_node(0.5))
    def weighted(incoming: Any, weight: Any, bias: Any) -> Any:
        """A weighted sum."""
        return bias + (weight * incoming).sum()

    @weighted.downward
    def weighted_errors(incoming: Any, weight: Any, bias: Any, state: Any, error: Any) -> Any:
        return error * weight, error * incoming, error

    return weighted


@pytest.mark.parametrize(
    ("wiring", "nodes", "source", "shape", "weight"),
    [
        (Patch(3), 2, (5, 5, 1), (3, 3, 2), (3, 3, 2, 9)),
        (Full(), (2, 3), (4,), (2, 3), (2, 3, 4)),
        (Full(), 6, (4,), (6,), (6, 4)),
        (OneToOne(), None, (4, 2), (4, 2), (4, 2, 1)),
        (Edges([(0, 0), (1, 0), (3, 2)], nodes=3), None, (4,), (3,), (3,)),
    ],
)
def test_shapes_follow_from_the_wiring(wiring: Any, nodes: Any, source: Any, shape: Any, weight: Any) -> None:
    net = Network("n")
    states = kind(wiring)(nodes)(net.input("x", shape=source))
    grid = net.graph()[states.name]
    assert states.name == "weighted"
    assert grid.shape == shape
    assert [(p.name, p.shape, p.initialiser) for p in grid.parameters] == [
        ("weighted.weight", weight, "he"),
        ("weighted.bias", shape, 0.5),
    ]


@pytest.mark.parametrize(
    ("shared_by", "grid", "weight", "bias", "shared"),
    [
        ("filter", (3, 3, 2), (2, 9), (2,), True),
        ("layer", (3, 3, 2), (1, 9), (1,), True),
        ("filter", (4,), (4, 25), (4,), False),
        ("layer", (4,), (1, 25), (1,), True),
    ],
)
def test_parameters_that_nodes_share(shared_by: Any, grid: Any, weight: Any, bias: Any, shared: bool) -> None:
    wiring, nodes = (Patch(3), 2) if len(grid) == 3 else (Full(), grid)
    kinds = per_edge(shared_by=shared_by), per_node(shared_by=shared_by)
    kind = node(wiring, weight=kinds[0], bias=kinds[1])(lambda incoming, weight, bias: bias)
    net = Network("n")
    states = kind(nodes)(net.input("x", shape=(5, 5, 1)))
    found = net.graph()[states.name]
    assert found.shape == grid
    assert [(p.shape, p.shared) for p in found.parameters] == [(weight, shared), (bias, shared)]


def test_parameters_of_sparse_edges_are_cut_where_the_rows_are() -> None:
    net = Network("n")
    wiring = Edges([(0, 0), (1, 0), (3, 2)], nodes=3)
    states = kind(wiring)()(net.input("x", shape=4))
    weight, bias = net.graph()[states.name].parameters
    assert [weight.span((row, row + 1)) for row in range(3)] == [(0, 2), (2, 2), (2, 3)]
    assert bias.span((1, 3)) == (1, 3)


def test_a_kind_gives_layers_with_names_and_keeps_the_docstring() -> None:
    weighted = kind(Full())
    first, second = weighted(2, name="first"), weighted(3)
    assert (first.name, first.nodes) == ("first", (2,))
    assert (second.name, second.nodes) == (None, (3,))
    assert first.definition.downward is not None
    assert first.kind == "Node weighted"
    assert weighted.__doc__ == "A weighted sum."


def test_without_downward_it_can_still_be_declared() -> None:
    @node(OneToOne())
    def twice(incoming: Any) -> Any:
        return 2 * incoming[0]

    assert twice().definition.downward is None


def wrong_upward() -> None:
    @node(OneToOne(), gain=per_node("ones"))
    def scaled(incoming: Any) -> Any:
        return incoming[0]


def wrong_downward() -> None:
    scaled = node(OneToOne())(lambda incoming: incoming[0])

    @scaled.downward
    def errors(incoming: Any, error: Any) -> Any:
        return (error * incoming,)


def two_inputs() -> None:
    net = Network("n")
    x = net.input("x", shape=3)
    Node(OneToOne(), lambda incoming: incoming[0], name="mine")(x, net.input("y", shape=4))


def shared_edges_of_a_sparse_graph() -> None:
    kind = node(Edges([(0, 0), (1, 0)], nodes=2), weight=per_edge(shared_by="layer"))
    kind(lambda incoming, weight: weight[0])(name="mine")(Network("n").input("x", shape=3))


def shared_by_whom() -> None:
    per_edge("glorot", shared_by="channel")  # type: ignore[arg-type]


def no_number_of_nodes() -> None:
    Node(Full(), lambda incoming: incoming[0], name="mine")(Network("n").input("x", shape=3))


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (wrong_upward, r"scaled takes \(incoming\), but a node gives it \(incoming, gain\)"),
        (wrong_downward, r"errors takes \(incoming, error\), but a node gives it \(incoming, state, error\)"),
        (two_inputs, "give it inputs of one shape"),
        (shared_edges_of_a_sparse_graph, "parameter 'weight' .* shared by each layer, but nodes of a sparse"),
        (shared_by_whom, "a parameter is shared by 'channel'; write 'filter'"),
        (no_number_of_nodes, "Node <lambda> 'mine': a fully connected layer needs its number of nodes"),
    ],
)
def test_mistakes_are_refused(declare: Callable[[], None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        declare()


def test_a_kind_of_layer_called_on_states_says_what_is_missing() -> None:
    kind = node(OneToOne())(lambda incoming: incoming[0])
    states = Network("n").input("x", shape=(4,))
    with pytest.raises(ValueError, match=r"make a layer of it first"):
        kind(states)  # type: ignore[arg-type]
