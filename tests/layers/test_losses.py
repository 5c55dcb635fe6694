"""Declared losses: their targets, and the summaries that machines exchange."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from partita import layers
from partita.layers import (
    BinaryCrossEntropy,
    HalfSquaredError,
    Huber,
    KLDivergence,
    Loss,
    Network,
    OneVsRest,
    SoftmaxCrossEntropy,
    Summary,
    SymbolicTensor,
)
from partita.layers.other_names import _MEANT


@pytest.mark.parametrize("loss", [SoftmaxCrossEntropy(), OneVsRest()])
def test_a_classifier_takes_a_label(loss: Loss) -> None:
    assert loss.target((7,)) == ((1,), 7)
    for shape in ((1,), (3, 2, 2), (3, 1)):
        with pytest.raises(ValueError, match=re.escape(f"the scores have shape {shape}; give it one score")):
            loss.target(shape)


def test_a_softmax_takes_a_label_for_each_position() -> None:
    assert SoftmaxCrossEntropy().target((3, 2)) == ((3,), 2)
    assert SoftmaxCrossEntropy().shape(((3, 2),)) == (1, 3)
    assert KLDivergence().target((3, 2)) == ((3, 2), None)
    with pytest.raises(ValueError, match=re.escape("the scores have shape (3, 2); give it one score")):
        OneVsRest().target((3, 2))


@pytest.mark.parametrize("loss", [BinaryCrossEntropy(), HalfSquaredError(), Huber()])
def test_others_take_a_number_for_each_score(loss: Loss) -> None:
    assert loss.target((3, 2)) == ((3, 2), None)


@pytest.mark.parametrize(
    ("loss", "rows"),
    [
        (SoftmaxCrossEntropy(), 2),
        (KLDivergence(), 3),
        (OneVsRest(), 1),
        (BinaryCrossEntropy(), 0),
        (HalfSquaredError(), 0),
        (Huber(), 0),
    ],
)
def test_all_scores_may_be_evaluated_where_they_are(loss: Loss, rows: int) -> None:
    assert loss.splits_scores
    assert loss.summary((1,)) == (Summary((rows,)) if rows else None)


def test_names_follow_the_kind() -> None:
    net = Network("named")
    scores = net.input("scores", shape=3)
    net.loss = [OneVsRest()(scores, net.target("a")), BinaryCrossEntropy()(scores, net.target("b"))]
    assert net.graph().losses == ("one_vs_rest", "binary_cross_entropy")


def two_losses() -> tuple[Network, SymbolicTensor, SymbolicTensor]:
    """A network, and a loss by labels and one by numbers over its scores."""
    net = Network("several")
    scores = net.input("scores", shape=3)
    first = SoftmaxCrossEntropy(loss_weight=2.0, name="first")(scores, net.target("a"))
    return net, first, HalfSquaredError(name="second")(scores, net.target("b"))


def weights(net: Network) -> dict[str, float]:
    """The factor of each loss in the sum."""
    graph = net.graph()
    found = {name: graph[name].layer for name in graph.losses}
    return {name: layer.loss_weight for name, layer in found.items() if isinstance(layer, Loss)}


def test_losses_are_added_as_tensors_are() -> None:
    net, first, second = two_losses()
    for assigned in (
        0.5 * (first + 0.5 * second),
        sum([first * 0.5, 0.25 * second]),
        [first * 0.5, second * 0.25],
    ):
        net.loss = assigned
        assert weights(net) == {"first": 1.0, "second": 0.25}
        assert net.loss_weights == (0.5, 0.25)
    net.loss = first + second
    assert weights(net) == {"first": 2.0, "second": 1.0}


def test_losses_are_weighted_as_in_keras() -> None:
    net, first, second = two_losses()
    net.loss = [first, second]
    net.loss_weights = [1, 0.3]
    assert weights(net) == {"first": 2.0, "second": 0.3}
    with pytest.raises(ValueError, match="loss_weights has 1 number for 2 losses"):
        net.loss_weights = [1]
    with pytest.raises(ValueError, match="loss 'first' is assigned twice"):
        net.loss = first + first
    with pytest.raises(ValueError, match="is not a loss"):
        net.loss = first + 2.0 * net.input("x", shape=3)
    with pytest.raises(ValueError, match="the weight of loss 'first' is nan; write a finite number"):
        first * float("nan")
    with pytest.raises(TypeError):
        first + 1  # type: ignore[operator]


def test_weights_of_examples_are_a_second_target() -> None:
    net = Network("weighted")
    scores = net.input("scores", shape=(4, 3))
    net.loss = SoftmaxCrossEntropy()(scores, net.target("y"), sample_weight=net.target("w"))
    graph = net.graph()
    assert [(grid.name, grid.shape) for grid in graph.targets] == [("y", (4,)), ("w", (4,))]
    assert graph[graph.losses[0]].sources == ("scores", "y", "w")
    target = net.target("z")
    with pytest.raises(ValueError, match="'z' already serves a loss of another shape"):
        SoftmaxCrossEntropy()(scores, target, target)
    with pytest.raises(ValueError, match="takes scores and a target"):
        HalfSquaredError()(scores)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label_smoothing": 1.0}, "label_smoothing is 1.0, not a number of at least 0 and below 1"),
        ({"weight": "balanced"}, "weight is 'balanced'; write a number for each class"),
        ({"weight": (1.0, -1.0)}, "weight is a row with -1.0; write 0 or a finite number above"),
        ({"ignore_index": 0.5}, "ignore_index is 0.5; write a whole number, or None"),
        ({"loss_weight": float("inf")}, "loss_weight is inf; write a finite number"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"SoftmaxCrossEntropy: {message}")):
        SoftmaxCrossEntropy(**settings)


def test_further_mistakes_are_refused() -> None:
    net = Network("weighted")
    with pytest.raises(ValueError, match="weight has 2 numbers, but there are 3 classes"):
        SoftmaxCrossEntropy(weight=(1, 2))(net.input("scores", shape=3), net.target("y"))
    with pytest.raises(ValueError, match=r"Huber: delta is 0, not a finite number above 0"):
        Huber(delta=0)


def test_arrays_become_weights() -> None:
    loss = SoftmaxCrossEntropy(weight=np.array([1, 2]), ignore_index=np.int64(-100))  # type: ignore[arg-type]
    assert loss == SoftmaxCrossEntropy(weight=(1.0, 2.0), ignore_index=-100)
    assert hash(loss) == hash(SoftmaxCrossEntropy((1.0, 2.0), -100))


def test_the_architecture_keeps_settings_and_weights() -> None:
    net = Network("kept")
    scores = net.input("scores", shape=3)
    first = SoftmaxCrossEntropy((1, 2, 3), ignore_index=0, label_smoothing=0.1)
    loss = first(scores, net.target("a"), sample_weight=net.target("w"))
    net.loss = 2 * loss + 0.5 * Huber(0.25)(scores, net.target("b"))
    kept = Network.from_json(net.to_json())
    assert kept.graph() == net.graph()
    assert weights(kept) == {"softmax_cross_entropy": 2.0, "huber": 0.5}


def test_names_of_other_libraries_are_answered() -> None:
    with pytest.raises(ImportError, match="has no CrossEntropyLoss; did you mean SoftmaxCrossEntropy"):
        from partita.layers import CrossEntropyLoss  # type: ignore[attr-defined]  # noqa: F401
    assert not hasattr(layers, "NoSuchLayer")
    for name, meant in _MEANT.items():
        assert hasattr(layers, meant.replace(",", " ").replace(":", " ").split()[0]), name
    with pytest.raises(TypeError, match="no argument 'class_weight'; did you mean 'weight'"):
        SoftmaxCrossEntropy(class_weight=(1, 2))  # type: ignore[call-arg]


def test_smooth_l1_is_huber_by_delta() -> None:
    scores, target = torch.tensor([0.1, -3.0, 2.0]), torch.zeros(3)
    huber = functional.huber_loss(scores, target, delta=0.5)
    assert huber == 0.5 * functional.smooth_l1_loss(scores, target, beta=0.5)
