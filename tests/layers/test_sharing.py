"""Parameters that all nodes of a layer share belong to its first row, whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.layers import Activation, Conv2D, Dense, MaxPool2D, Network, Parameter
from partita.layers.box import Shape


class HalfShared(Dense):
    """Nodes with weights of their own and one bias for all."""

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        weight, bias = super().parameters(shape, sources)
        return weight, replace(bias, shape=(1,), shared=True)


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


def test_a_layer_shares_all_or_none() -> None:
    x = Network("n").input("x", shape=4)
    with pytest.raises(ValueError, match=r"^HalfShared 'half': its nodes share .* but not half.weight; let"):
        HalfShared(3, name="half")(x)


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
