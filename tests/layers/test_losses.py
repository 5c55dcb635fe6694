"""Declared losses: their targets, and the summaries that machines exchange."""

from __future__ import annotations

import re

import pytest

from partita.layers import (
    BinaryCrossEntropy,
    HalfSquaredError,
    Loss,
    Network,
    OneVsRest,
    SoftmaxCrossEntropy,
    Summary,
)


@pytest.mark.parametrize("loss", [SoftmaxCrossEntropy(), OneVsRest()])
def test_a_classifier_takes_a_label(loss: Loss) -> None:
    assert loss.target((7,)) == ((1,), 7)
    for shape in ((1,), (3, 2)):
        with pytest.raises(ValueError, match=re.escape(f"the scores have shape {shape}; give it one score")):
            loss.target(shape)


@pytest.mark.parametrize("loss", [BinaryCrossEntropy(), HalfSquaredError()])
def test_others_take_a_number_for_each_score(loss: Loss) -> None:
    assert loss.target((3, 2)) == ((3, 2), None)


@pytest.mark.parametrize(
    ("loss", "rows"),
    [(SoftmaxCrossEntropy(), 2), (OneVsRest(), 1), (BinaryCrossEntropy(), 0), (HalfSquaredError(), 0)],
)
def test_all_scores_may_be_evaluated_where_they_are(loss: Loss, rows: int) -> None:
    assert loss.splits_scores
    assert loss.summary((1,)) == (Summary((rows,)) if rows else None)


def test_names_follow_the_kind() -> None:
    net = Network("named")
    scores = net.input("scores", shape=3)
    net.loss = [OneVsRest()(scores, net.target("a")), BinaryCrossEntropy()(scores, net.target("b"))]
    assert net.graph().losses == ("one_vs_rest", "binary_cross_entropy")
