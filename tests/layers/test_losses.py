"""Losses as they are declared: what they compare with, and what machines must tell one another."""

from __future__ import annotations

import re

import pytest

from partita.layers import (
    LogisticCrossEntropy,
    Loss,
    Network,
    OneAgainstAll,
    SoftmaxCrossEntropy,
    SquaredError,
)


@pytest.mark.parametrize("loss", [SoftmaxCrossEntropy(), OneAgainstAll()])
def test_a_classifier_takes_a_label(loss: Loss) -> None:
    assert loss.target((7,)) == ((1,), 7)
    for shape in ((1,), (3, 2)):
        with pytest.raises(ValueError, match=re.escape(f"the scores have shape {shape}; give it one score")):
            loss.target(shape)


@pytest.mark.parametrize("loss", [LogisticCrossEntropy(), SquaredError()])
def test_others_take_a_number_for_each_score(loss: Loss) -> None:
    assert loss.target((3, 2)) == ((3, 2), None)


@pytest.mark.parametrize(
    ("loss", "rows"),
    [(SoftmaxCrossEntropy(), 2), (OneAgainstAll(), 1), (LogisticCrossEntropy(), 0), (SquaredError(), 0)],
)
def test_all_may_be_judged_where_the_scores_are(loss: Loss, rows: int) -> None:
    assert loss.splits_scores
    assert loss.summary_rows == rows


def test_names_follow_the_kind() -> None:
    net = Network("named")
    scores = net.input("scores", shape=3)
    net.loss = [OneAgainstAll()(scores, net.target("a")), LogisticCrossEntropy()(scores, net.target("b"))]
    assert net.graph().losses == ("one_against_all", "logistic_cross_entropy")
