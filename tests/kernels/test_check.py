"""The check of a user's `downward`; with it, the definitions of our own layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from partita.engine import check_gradients
from partita.engine.kernels.check import differences
from partita.engine.kernels.nodes.derivatives import SLOPES
from partita.layers import (
    Activation,
    Add,
    AveragePool2D,
    BinaryCrossEntropy,
    Conv2D,
    Dense,
    Edges,
    HalfSquaredError,
    L2Pool2D,
    Layer,
    LocalContrastNormalisation2D,
    LocallyConnected2D,
    MaxPool2D,
    Node,
    NodeDefinition,
    OneToOne,
    OneVsRest,
    Patch,
    SoftmaxCrossEntropy,
    node,
    per_edge,
    per_node,
)
from tests.kernels.cases import case
from tests.kernels.reference import Reference

OURS = [
    *(Activation(function) for function in ("linear", "relu", "sigmoid", "tanh")),
    *(Dense(4, activation="tanh", use_bias=use_bias) for use_bias in (True, False)),
    LocallyConnected2D(2, 3, padding="same", activation="sigmoid"),
    Conv2D(4, 2, stride=2, padding=1, dilation=2, groups=2, activation="tanh"),
    LocalContrastNormalisation2D(3),
    LocalContrastNormalisation2D((3, 5), floor=2.0),
    MaxPool2D(2),
    AveragePool2D(3, stride=1),
    L2Pool2D(2),
]


@pytest.mark.parametrize("layer", OURS, ids=repr)
def test_our_own_definitions_are_right(layer: Layer) -> None:
    report = check_gradients(layer, (4, 4, 2))
    assert report, str(report)
    assert "agrees with differences" in str(report)


@node(Patch(2), weight=per_edge("glorot"), bias=per_node("zeros"))
def squared(incoming: Any, weight: Any, bias: Any) -> Any:
    """The square of a weighted sum."""
    return (bias + (weight * incoming).sum()) ** 2


@squared.downward
def squared_errors(incoming: Any, weight: Any, bias: Any, state: Any, error: Any) -> Any:
    delta = 2 * error * (bias + (weight * incoming).sum())
    return delta * weight, delta * incoming, error  # the bias's is wrong


def test_reports_what_is_wrong_and_what_differences_give() -> None:
    report = check_gradients(squared(2), (3, 3, 1), nodes=4)
    assert not report
    assert len(report.mismatches) == 4
    assert {mismatch.what.split(" of node")[0] for mismatch in report.mismatches} == {"gradient of bias"}
    lines = str(report).splitlines()
    assert lines[0] == f"Node squared: downward is wrong in 4 of {report.compared} numbers"
    wrong = report.mismatches[0]
    said = f"downward returns {wrong.downward:.6g}, differences give {wrong.differences:.6g}"
    assert lines[1] == f"  gradient of bias of node 0: {said}"


def test_ragged_edges_and_nodes_without_inputs() -> None:
    def upward(incoming: Any, weight: Any) -> Any:
        return (weight * incoming).sum()

    def downward(incoming: Any, weight: Any, state: Any, error: Any) -> Any:
        return error * weight, error * incoming

    wiring = Edges([(0, 0), (2, 0), (1, 3)], nodes=4)
    report = check_gradients(Node(wiring, upward, downward, learns=(("weight", per_edge()),)), (3,))
    assert report
    assert report.compared == 6


@pytest.mark.parametrize(
    ("downward", "message"),
    [
        (lambda incoming, state, error: error * incoming, r"must return the tuple \(errors,\)"),
        (lambda incoming, state, error: (error,), r"errors have shape \(\); it must be \(1,\)"),
    ],
)
def test_what_cannot_be_compared_is_refused(downward: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_gradients(Node(OneToOne(), lambda incoming: 2 * incoming[0], downward), (3,))


def smooth(incoming: Any, weight: Any, bias: Any) -> Any:
    total = bias
    for k in range(len(incoming)):
        total += weight[k] * incoming[k]
    return math.tanh(total)


def halved(incoming: Any, weight: Any, bias: Any) -> Any:
    total = bias + 3.0 * weight[0] * incoming[0] * incoming[1]
    while total > 1:
        total = total / 2
    return total


def looked_up(incoming: Any, weight: Any, bias: Any) -> Any:
    return {"high": weight[0]}["high"] * incoming[0] + bias


@pytest.mark.parametrize("upward", [smooth, halved])
@pytest.mark.parametrize("shared_by", [None, "filter"])
def test_a_derived_downward_is_compared(upward: Any, shared_by: Any) -> None:
    """The function of compiled loops, and where these cannot run it, autograd in torch."""
    learns = (("weight", per_edge(shared_by=shared_by)), ("bias", per_node()))
    report = check_gradients(Node(Patch(2), upward, learns=learns, nodes=2), (3, 3, 1), nodes=4)
    assert report and report.compared == 4 * (4 + 4 + 1)
    assert str(report).startswith(f"Node {upward.__name__}: the derived downward agrees with differences")


def test_a_wrong_derivative_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SLOPES, "hyperbolic_tangent", SLOPES["exponential"])
    layer = Node(OneToOne(), smooth, learns=(("weight", per_edge()), ("bias", per_node())))
    report = check_gradients(layer, (3,))
    assert not report
    assert str(report).startswith("Node smooth: the derived downward is wrong in 9 of 9 numbers")


def test_of_a_node_that_has_no_derivative_the_line_is_named() -> None:
    layer = Node(OneToOne(), looked_up, learns=(("weight", per_edge()), ("bias", per_node())), name="mine")
    with pytest.raises(ValueError, match=r"(?s)Node looked_up 'mine' cannot be trained.*'high': weight\[0\]"):
        check_gradients(layer, (3,))


LOSSES = [SoftmaxCrossEntropy(), OneVsRest(), BinaryCrossEntropy(), HalfSquaredError()]


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_losses_are_checked_for_a_target_of_their_kind(loss: Any) -> None:
    report = check_gradients(loss, (3,))
    assert report, str(report)
    assert report.compared == 3


@dataclass(frozen=True)
class Halves(Layer):
    """Half of one input and `share` of another; the backward pass is wrong for the second."""

    share: float = 0.5
    name: str | None = None
    connectivity = OneToOne()
    several_inputs = True

    def shape(self, sources: Any) -> Any:
        return sources[0]

    @property
    def definition(self) -> NodeDefinition:
        def upward(incoming: Any) -> Any:
            return 0.5 * incoming[0] + self.share * incoming[1]

        return NodeDefinition(upward, lambda incoming, state, error: (0.5 * error + 0 * incoming,))


def test_errors_of_several_inputs_are_named_by_input() -> None:
    assert check_gradients(Add(), (2, 3), (2, 3), (2, 3)).compared == 18
    assert check_gradients(Halves(), (4,), (4,))
    report = check_gradients(Halves(0.25), (4,), (4,))
    assert [mismatch.what for mismatch in report.mismatches] == [
        f"errors of input 1[0] of node {n}" for n in range(4)
    ]


@pytest.mark.parametrize(
    ("layer", "shapes", "message"),
    [
        (Add(), ((2,),), "give it two or more of the same shape"),
        (Dense(2), ((2,), (2,)), "takes one input, not 2"),
        (Dense(2), (), "give the shape of its input too"),
        (SoftmaxCrossEntropy(), ((2, 2, 2),), "give it one score for each class"),
        (LocallyConnected2D(2, 3), ((2, 2, 1),), "does not fit"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(layer: Layer, shapes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_gradients(layer, *shapes)


def test_a_layer_without_a_definition_has_nothing_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Halves, "definition", None)
    with pytest.raises(ValueError, match="has no node definition"):
        check_gradients(Halves(), (2,), (2,))


@pytest.mark.parametrize(
    "loss", [SoftmaxCrossEntropy(), OneVsRest(), BinaryCrossEntropy(), HalfSquaredError()], ids=repr
)
def test_the_definitions_of_losses_are_right(loss: Any) -> None:
    labelled = isinstance(loss, SoftmaxCrossEntropy | OneVsRest)
    target = np.array([[1, 2]]) if labelled else np.full((3, 2), 0.75)
    given = case(loss, (3,), batch=2, target=target)
    reference, (scores, target) = Reference(given.grid, given.sources), given.inputs
    errors, _ = reference.backward(given.inputs, reference.forward(given.inputs), given.error)
    expected = differences(
        lambda moved: float((reference.forward([moved, target]) * given.error).sum()), scores
    )
    np.testing.assert_allclose(errors[0], expected, rtol=1e-6, atol=1e-8)
