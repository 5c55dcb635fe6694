"""Parameters that all nodes of a layer share belong to its first row, whole."""

from __future__ import annotations

from typing import Any

from partita.layers import (
    Activation,
    Conv2D,
    Dense,
    Full,
    MaxPool2D,
    Network,
    Parameter,
    node,
    per_edge,
    per_node,
)


def test_a_shared_parameter_is_of_the_first_row() -> None:
    weight = Parameter("weight", (3, 5), shared=True)
    assert weight.span((0, 1)) == weight.span((0, 100)) == (0, 15)
    assert weight.span((1, 100)) == (0, 0)
    assert Parameter("weight", (3, 5)).span((1, 3)) == (5, 15)


def test_a_layer_says_whether_its_nodes_share() -> None:
    net = Network("n")
    conv = Conv2D(2, 3, name="conv")(net.input("x", shape=(5, 5, 1)))
    Dense(3, name="scores")(conv)
    graph = net.graph()
    assert graph["conv"].shares_weights
    assert not graph["scores"].shares_weights and not graph["x"].shares_weights


@node(Full(), weight=per_edge(), slope=per_node(0.25, shared_by="layer"))
def half(incoming: Any, weight: Any, slope: Any) -> Any:
    """Nodes with weights of their own and one slope for all."""
    return slope * (weight * incoming).sum()


def test_of_a_layer_that_shares_some_each_parameter_has_a_place_of_its_own() -> None:
    net = Network("n")
    half(3, name="half")(Conv2D(2, 3, name="conv")(net.input("x", shape=(5, 5, 1))))
    graph = net.graph()
    assert graph["half"].shares_some and not graph["half"].replicable
    assert not graph["conv"].shares_some and graph["conv"].replicable
    assert [(p.shape, p.shared) for p in graph["half"].parameters] == [((3, 18), False), ((1,), True)]
    assert list(graph.placed) == ["half.weight", "half.slope"]


def test_in_another_network_a_layer_has_weights_of_its_own() -> None:
    dense = Dense(4)
    for name in ("one", "two"):
        assert dense(Network(name).input("x", shape=4)).name == "dense"


def test_a_layer_without_weights_may_be_called_often() -> None:
    net = Network("n")
    pool, activation = MaxPool2D(2), Activation("relu")
    x = net.input("x", shape=(8, 8, 1))
    pooled = pool(activation(pool(activation(x))))
    assert pooled.shape == (2, 2, 1)
    assert [grid.name for grid in net.graph().grids][1:] == [
        "activation",
        "max_pool_2d",
        "activation_1",
        "max_pool_2d_1",
    ]
