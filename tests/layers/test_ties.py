"""Layers that use the parameters of another call: names, sharing by the call's nodes, and what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from partita.layers import (
    L2,
    Conv2D,
    Dense,
    Embedding,
    FeedForward,
    GlobalAveragePool,
    Linear,
    MultiHeadAttention,
    Network,
    ParameterOf,
    SymbolicTensor,
)


def words() -> SymbolicTensor:
    return Network("n").input("words", shape=6, classes=9)


def test_two_calls_of_a_layer_use_the_parameters_of_the_first() -> None:
    net = Network("n")
    dense = Dense(4, name="dense", regulariser=L2(0.1))
    dense(dense(net.input("x", shape=4)))
    graph = net.graph()
    assert [grid.name for grid in graph.computed] == ["dense", "dense_1"]
    assert graph["dense"].parameters == graph["dense_1"].parameters
    assert list(graph.parameters) == ["dense.weight", "dense.bias"] and graph.n_parameters == 20
    assert graph.users["dense.weight"] == ("dense", "dense_1") and graph.tied == {"dense", "dense_1"}
    assert "dense_1  Dense                4 <- dense with dense.weight, dense.bias" in str(graph)
    assert pickle.loads(pickle.dumps(graph)) == graph


def test_a_table_is_the_weight_of_the_scores() -> None:
    embedding, x = Embedding(9, 4, name="table", trainable=False), words()
    Linear(9, weight=embedding.weight, name="scores")(Linear(4, name="hidden")(embedding(x)))
    assert isinstance(x.network, Network)
    graph, names = x.network.graph(), x.network.parameters
    weight, bias = graph["scores"].parameters
    assert (weight.name, weight.layer, weight.shape, weight.shared) == ("table.weight", "table", (9, 4), True)
    assert not weight.trainable and bias.trainable, "the other layer decides about its own"
    assert names["scores"]["weight"].name == names["table"]["weight"].name == "table.weight"
    assert names["scores"]["bias"].name == "scores.bias"
    assert list(graph.placed) == ["table.weight", "scores.bias"]
    assert list(graph.parameters) == ["table.weight", "hidden.weight", "hidden.bias", "scores.bias"]


def test_each_call_says_whether_its_nodes_share_a_parameter() -> None:
    net = Network("n")
    dense = Dense(4, name="dense")
    pooled = GlobalAveragePool()(Conv2D(4, 1)(net.input("picture", shape=(3, 3, 1))))
    dense(pooled)
    Linear(4, weight=dense.parameter("weight"), name="line")(net.input("x", shape=(2, 4)))
    graph = net.graph()
    assert [grid.parameters[0].shared for grid in (graph["dense"], graph["line"])] == [False, True]
    assert graph.parameters["dense.weight"] == graph["dense"].parameters[0]


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda e: Linear(8, weight=e.weight), r"its weight has the shape \(8, 4\), but table.weight has "),
        (lambda e: Linear(9, weight=e.parameter("bias")), "is to be the bias of 'table', which has weight$"),
        (lambda e: Linear(9, weight=Embedding(9, 4).weight), "that of another Embedding, which was not"),
        (lambda e: Linear(9, weight=e.weight, regulariser=L2(0.1)), "that of its own layer; give it there"),
        (lambda e: Dense(9, weight=[1.0]), r"the weight is \[1.0\]; give that of another layer"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(layer, message: str) -> None:  # type: ignore[no-untyped-def]
    embedding = Embedding(9, 4, name="table")
    found = embedding(words())
    with pytest.raises(ValueError, match=message):
        layer(embedding)(found)


def test_a_second_call_needs_an_input_of_the_same_features() -> None:
    net = Network("n")
    dense = Dense(4, name="dense")
    dense(net.input("x", shape=3))
    with pytest.raises(ValueError, match=r"^Dense 'dense_1': its weight has the shape \(4, 5\), but"):
        dense(net.input("y", shape=5))


def test_a_reference_names_its_layer() -> None:
    assert repr(Embedding(9, 4, name="table").weight) == "<weight of Embedding 'table'>"
    assert repr(ParameterOf(Dense(2), "bias")) == "<bias of Dense>"


@pytest.mark.parametrize(
    "several", [MultiHeadAttention(2), MultiHeadAttention(2, rows="heads"), FeedForward(6)]
)
def test_what_places_several_layers_uses_their_parameters_again(several: Any) -> None:
    net = Network("n")
    found = several(net.input("x", shape=(3, 4)))
    alone = set(net.graph().parameters)
    several(found)
    assert set(net.graph().parameters) == alone and net.graph().tied


def test_heads_that_share_parameters_have_a_mask_or_none() -> None:
    net = Network("n")
    attention, x = MultiHeadAttention(2, rows="heads", name="attention"), net.input("x", shape=(3, 4))
    attention(x)
    with pytest.raises(ValueError, match="'attention' was called without a mask before, and its calls"):
        attention(x, mask=net.input("mask", shape=3))
