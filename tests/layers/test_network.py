"""Declaring networks: what may be written, and every mistake refused by the name of its layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from partita.layers import (
    Activation,
    Add,
    Dense,
    HalfSquaredError,
    LocallyConnected2D,
    MaxPool2D,
    Network,
    SoftmaxCrossEntropy,
)


def digits() -> Network:
    net = Network("digits")
    image = net.input("image", shape=(8, 8, 1))
    hidden = LocallyConnected2D(8, kernel_size=3, activation="relu")(image)
    net.loss = SoftmaxCrossEntropy()(Dense(10, name="scores")(hidden), net.target("digit"))
    return net


def test_shapes_names_and_parameters() -> None:
    graph = digits().graph()
    names = {"image", "locally_connected_2d", "scores", "digit", "softmax_cross_entropy"}
    assert {grid.name for grid in graph.grids} == names
    local = graph["locally_connected_2d"]
    assert local.shape == (6, 6, 8)
    assert [(p.name, p.shape) for p in local.parameters] == [
        (f"{local.name}.weight", (6, 6, 8, 9)),
        (f"{local.name}.bias", (6, 6, 8)),
    ]
    assert graph["scores"].parameters[0].shape == (10, 288)
    assert graph["digit"].layer.classes == 10  # type: ignore[attr-defined]
    assert graph.scores == ("scores",)
    assert "288" not in str(graph)
    assert "scores" in str(graph)


def test_unnamed_layers_get_names_of_their_own() -> None:
    net = Network("chain")
    states = net.input("x", shape=4)
    names = []
    for _ in range(3):
        states = Dense(4)(states)
        names.append(states.name)
    assert names == ["dense", "dense_1", "dense_2"]
    assert repr(states) == "<states of dense_2 (4,)>"


def test_branches_skips_several_inputs_and_losses() -> None:
    net = Network("branches")
    left, right = net.input("left", shape=4), net.input("right", shape=(2, 2))
    both = Add()(Dense(4)(left), Dense(4)(right), left)
    doubled = Add()(both, both)
    net.loss = (
        SoftmaxCrossEntropy()(doubled, net.target("label")),
        HalfSquaredError()(Dense(2)(both), net.target("values")),
    )
    graph = net.graph()
    assert len(graph.losses) == 2
    assert [grid.name for grid in graph.inputs] == ["left", "right"]
    assert graph["values"].shape == (2,)


def test_a_network_without_a_loss_predicts() -> None:
    net = Network("plain")
    Dense(2, name="out")(net.input("x", shape=3))
    assert net.graph().scores == ("out",)


def wrong(write: Callable[[Network, Any], Any]) -> Callable[[], Any]:
    def declare() -> None:
        net = Network("n")
        write(net, net.input("x", shape=(4, 4, 2)))

    return declare


def unused(net: Network, x: Any) -> None:
    Dense(2, name="lonely")(x)
    net.loss = HalfSquaredError()(Dense(2)(x), net.target("t"))
    net.graph()


def unassigned(net: Network, x: Any) -> None:
    HalfSquaredError(name="mine")(Dense(2)(x), net.target("t"))
    net.graph()


def target_of_two_shapes(net: Network, x: Any) -> None:
    target = net.target("t")
    HalfSquaredError()(Dense(2)(x), target)
    HalfSquaredError(name="second")(Dense(3)(x), target)


def loss_assigned_twice(net: Network, x: Any) -> None:
    loss = HalfSquaredError(name="mine")(Dense(2)(x), net.target("t"))
    net.loss = (loss, loss)


MISTAKES: list[tuple[Callable[[Network, Any], Any], str]] = [
    (lambda net, x: Network("2nd"), "'2nd' cannot name a network"),
    (lambda net, x: net.input("a.b", shape=3), r"'a\.b' cannot name a layer"),
    (
        lambda net, x: net.input("y", shape=(3, 0)),
        r"the shape of input 'y' is \(3, 0\); write a whole number",
    ),
    (lambda net, x: net.input("y", shape=()), r"the shape of input 'y' is \(\)"),
    (lambda net, x: net.input("y", shape=2.5), r"the shape of input 'y' is 2\.5"),
    (lambda net, x: net.input("y", shape=True), "the shape of input 'y' is True"),
    (lambda net, x: net.input("x", shape=3), "already has a layer 'x'; give this one another name"),
    (lambda net, x: Dense(3, name="x")(x), "already has a layer 'x'"),
    (lambda net, x: Dense(3)(), "Dense needs the states of another layer"),
    (lambda net, x: Dense(3, name="d")(x, 5), "Dense 'd' was called on"),
    (lambda net, x: Dense(3)("x"), "Dense needs the states of another layer"),
    (lambda net, x: Add()([x, x]), r"Add needs the states of another layer; write Add\(\)\(a, b\)"),
    (lambda net, x: Dense(3, name="")(x), "'' cannot name a layer of kind Dense; use letters"),
    (
        lambda net, x: Dense(3, name="d")(x, Network("m").input("y", shape=3)),
        "Dense 'd' joins 'y' of network 'm'",
    ),
    (lambda net, x: Dense(0), "Dense: the number of nodes is 0; write"),
    (lambda net, x: Dense(3, activation="softmax"), "no activation 'softmax'; choose one of linear, relu"),
    (lambda net, x: Activation("swish"), "no activation 'swish'"),
    (lambda net, x: LocallyConnected2D(0, 3), "LocallyConnected2D: the number of filters is 0"),
    (
        lambda net, x: LocallyConnected2D(2, 5, name="l")(x),
        r"LocallyConnected2D 'l': a patch of 5 does not fit",
    ),
    (
        lambda net, x: MaxPool2D(2, name="p")(Dense(3)(x)),
        r"MaxPool2D 'p': the input has shape \(3,\); a picture is",
    ),
    (lambda net, x: Add(name="a")(x), "Add 'a': .*two or more"),
    (lambda net, x: Add(name="a")(x, Dense(3)(x)), "Add 'a': the inputs have the shapes"),
    (lambda net, x: HalfSquaredError(name="e")(x), "HalfSquaredError 'e' takes scores and a target"),
    (
        lambda net, x: HalfSquaredError(name="e")(net.target("t"), x),
        "HalfSquaredError 'e' takes scores and a target",
    ),
    (
        lambda net, x: SoftmaxCrossEntropy(name="s")(x, net.target("t")),
        r"SoftmaxCrossEntropy 's': the scores have shape",
    ),
    (lambda net, x: Dense(3, name="d")(net.target("t")), "Dense 'd' reads target 't'; only a loss may"),
    (lambda net, x: Dense(3, name="d")(HalfSquaredError()(x, net.target("t"))), "Dense 'd' reads loss"),
    (target_of_two_shapes, "target 't' already serves a loss of another shape"),
    (lambda net, x: setattr(net, "loss", Dense(3)(x)), "is not a loss; assign for example"),
    (lambda net, x: setattr(net, "loss", 3), "3 is not a loss; assign"),
    (
        lambda net, x: setattr(net, "loss", digits().loss),
        "'softmax_cross_entropy' is of network 'digits', not",
    ),
    (loss_assigned_twice, "loss 'mine' is assigned twice; name each loss once"),
    (lambda net, x: net.shape("y"), "network 'n' has no layer 'y'; it has x"),
    (lambda net, x: net.graph(), "is used by nobody"),
    (unused, "Dense 'lonely' of network 'n' is used by nobody"),
    (unassigned, "loss 'mine' is not assigned"),
]


@pytest.mark.parametrize(("write", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes_are_refused_where_they_are_made(write: Callable[[Network, Any], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong(write)()


def test_a_second_input_is_refused_by_layers_of_one() -> None:
    x = Network("n").input("x", shape=(4, 4, 2))
    with pytest.raises(ValueError, match="Dense 'd' takes one input, not 2"):
        Dense(3, name="d")(x, x)
