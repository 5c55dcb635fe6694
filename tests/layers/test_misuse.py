"""Settings that cannot be are refused where they are written, in one sentence that names what they are of."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from partita.engine.parameters.initial_values import CONSTANTS, DRAWN
from partita.layers import (
    Activation,
    Add,
    AveragePool2D,
    Dense,
    Edges,
    Full,
    LocallyConnected2D,
    MaxPool2D,
    Network,
    Node,
    OneToOne,
    Parameter,
    Patch,
    node,
    per_edge,
    per_node,
)
from partita.layers.initial import INITIALISERS

local: Any = LocallyConnected2D
dense: Any = Dense
loosely: Any = node
SIZE = "LocallyConnected2D: the size of a patch is"
PADDING = "LocallyConnected2D: the padding of a patch is"


def weigh(incoming: Any, weight: Any) -> Any:
    return (weight * incoming).sum()


def half(incoming: Any) -> Any:
    return incoming[0] / 2


def swapped(incoming: Any, bias: Any, gain: Any) -> Any:
    return gain * incoming[0] + bias


def declared(wiring: Any = None, **learns: Any) -> Any:
    return loosely(wiring or Full(), **learns)(weigh)


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (lambda: local(4, 2.5), f"{SIZE} 2.5; write a whole number of at least 1, or a tuple of them"),
        (lambda: local(4, True), f"{SIZE} True; write"),
        (lambda: local(4, "3"), f"{SIZE} '3'; write"),
        (lambda: local(4, None), f"{SIZE} None; write"),
        (lambda: local(4, ()), f"{SIZE} (); write"),
        (lambda: local(4, (3, 0)), f"{SIZE} (3, 0); write"),
        (lambda: local(4, 3, stride=1.5), "LocallyConnected2D: the stride of a patch is 1.5; write"),
        (lambda: local(4, 3, padding=True), f"{PADDING} True; write 'valid', 'same', a whole number"),
        (lambda: local(4, 3, padding=("same", "valid")), f"{PADDING} ('same', 'valid'); write"),
        (lambda: local(4, 3, padding="sme"), f"{PADDING} 'sme'; write"),
        (lambda: local(4, 3, padding=-1), f"{PADDING} -1; write"),
        (lambda: local(2.0, 3), "LocallyConnected2D: the number of filters is 2.0; write"),
        (lambda: Patch(()), "the size of a patch is (); write"),
        (lambda: Patch(2, per_channel=1), "per_channel of a patch is 1; write True or False"),  # type: ignore[arg-type]
        (lambda: MaxPool2D(2.5), "MaxPool2D: the size of a patch is 2.5; write"),  # type: ignore[arg-type]
        (lambda: MaxPool2D(ceil_mode=1), "MaxPool2D: ceil_mode of a patch is 1; write True or False"),  # type: ignore[arg-type]
        (
            lambda: AveragePool2D(3, padding=1, ceil_mode=True),
            "AveragePool2D: with ceil_mode, patches reach beyond the padding, and what lies there does not "
            "count; write count_include_pad=False",
        ),
        (lambda: AveragePool2D(stride=0), "AveragePool2D: the stride of a patch is 0; write"),
        (lambda: dense(10, use_bias="no"), "Dense: use_bias is 'no'; write True or False"),
        (lambda: dense(10, activation=["relu"]), "Dense: there is no activation ['relu']; choose"),
        (lambda: Activation("swish"), "Activation: there is no activation 'swish'; choose"),
        (
            lambda: dense(10, initialiser="xavier"),
            r"Dense: there is no initialiser 'xavier'; did you mean 'xavier_normal'? choose one of glorot",
        ),
        (lambda: dense(10, initialiser=float("nan")), "Dense: there is no initialiser nan; choose"),
        (lambda: dense(10, initialiser=None), "Dense: there is no initialiser None; choose"),
        (lambda: dense(10, initialiser=True), "Dense: there is no initialiser True; choose"),
        (
            lambda: per_edge("xavier"),
            r"there is no initialiser 'xavier'; did you mean 'xavier_normal'? choose",
        ),
        (
            lambda: Parameter("p", (2,), "xavier"),
            r"there is no initialiser 'xavier'; did you mean 'xavier_normal'? choose",
        ),
    ],
)
def test_settings_of_layers(declare: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(sentence)):
        declare()


@pytest.mark.parametrize("nodes", [0, -3, True, (), 2.0, "3", (2, 0)])
@pytest.mark.parametrize("wiring", [Full(), Patch(3)])
def test_counts_of_nodes(nodes: Any, wiring: Any) -> None:
    with pytest.raises(
        ValueError,
        match="^" + re.escape(f"Node weigh: the number of nodes is {nodes!r}; write a whole number"),
    ):
        declared(wiring, weight=per_edge())(nodes)


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (lambda: loosely(weigh), "a node's wiring is weigh; write for example @node(Full())"),
        (lambda: loosely(Full), "a node's wiring is Full; write for example @node(Full())"),
        (lambda: loosely("full"), "a node's wiring is 'full'; write"),
        (lambda: Node("full", half), "Node half: a node's wiring is 'full'; write"),  # type: ignore[arg-type]
        (
            lambda: declared(weight="glorot"),
            "Node weigh: parameter 'weight' is 'glorot'; write weight=per_edge(",
        ),
        (lambda: declared(weight=per_edge), "Node weigh: parameter 'weight' is per_edge; write"),
        (lambda: Node(OneToOne(), 5), "Node int: 5 is no function; give one"),  # type: ignore[arg-type]
        (lambda: Node(OneToOne(), half, 5), "Node half: 5 is no function; give one"),  # type: ignore[arg-type]
        (
            lambda: node(OneToOne(), gain=per_node(), bias=per_node())(swapped),
            "Node swapped: swapped takes (incoming, bias, gain), but its parameters are declared as gain, "
            "bias; name them so, in this order",
        ),
        (
            lambda: declared(weight=per_edge()).downward(lambda incoming, w, state, error: (w, w)),
            "Node weigh: <lambda> takes (incoming, w, state, error), but its parameters are declared as",
        ),
    ],
)
def test_nodes(declare: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(sentence)):
        declare()


def test_what_is_no_parameter_may_have_any_name() -> None:
    weighed = declared(weight=per_edge())
    weighed.downward(lambda heard, weight, _state, err: (err * weight, err * heard))
    assert weighed(2).definition.downward is not None


@pytest.mark.parametrize(
    ("pairs", "nodes", "sentence"),
    [
        ([(0.5, 1)], 2, "an edge is (0.5, 1); write a pair (sender, receiver) of whole numbers"),
        ([(0, 1, 2)], 3, "an edge is (0, 1, 2); write a pair"),
        ([0, 1], 3, "an edge is 0; write a pair"),
        (["01"], 3, "an edge is '01'; write a pair"),
        ([], -2, "the number of nodes that Edges lead to is -2; write"),
        ([], (), "the number of nodes that Edges lead to is (); write"),
        ([(-1, 1)], 2, "an edge starts at node -1; senders are counted from 0"),
        ([(1, -1)], 2, "an edge leads to node -1; receivers are 0 to 1"),
    ],
)
def test_edges(pairs: Any, nodes: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(sentence)):
        Edges(pairs, nodes=nodes)


def test_numbers_of_numpy_and_lists_are_as_good() -> None:
    three: Any = np.int64(3)
    assert repr(Dense(three)) == repr(Dense(3))
    as_lists = LocallyConnected2D(three, [three, 3], stride=[1, 1], padding=[0, three - 1])  # type: ignore[arg-type]
    assert repr(as_lists) == repr(LocallyConnected2D(3, (3, 3), stride=(1, 1), padding=(0, 2)))
    assert hash(as_lists)
    assert Dense(3, initialiser=np.float32(0.5)).initialiser == 0.5  # type: ignore[arg-type]
    assert declared(weight=per_edge())([three, 2]).nodes == (3, 2)
    assert Edges(np.array([[0, 1], [2, 1]]), nodes=three) == Edges([(0, 1), (2, 1)], nodes=3)  # type: ignore[arg-type]
    x = Network("n").input("x", shape=np.ones((5, 3, 4)).shape[1:])
    assert Add()(x, x).shape == (3, 4)
    assert repr(Network("n").input("x", shape=[three, three]).shape) == "(3, 3)"


def test_the_engine_knows_every_initialiser() -> None:
    assert set(INITIALISERS) == {*DRAWN, *CONSTANTS}
