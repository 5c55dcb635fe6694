"""Losses: against the node definition and torch, whole and by machines that each evaluate some scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.numerics import upcast_array
from partita.layers import (
    BinaryCrossEntropy,
    HalfSquaredError,
    Huber,
    KLDivergence,
    Loss,
    OneVsRest,
    SoftmaxCrossEntropy,
)
from tests.draws import examples
from tests.kernels.cases import seeds
from tests.kernels.loss_cases import BATCH, LABELLED, LOSSES, Evaluated, given_case
from tests.properties.losses import (
    assert_counts_right_examples,
    assert_large_scores_stay_finite,
    assert_loss_and_errors_of_the_mean,
    assert_nan_score_shows_in_loss,
    expected_errors,
)


@pytest.mark.parametrize("loss", LOSSES)
def test_equals_the_definition_and_sends_the_errors_of_the_mean(loss: Loss) -> None:
    assert_loss_and_errors_of_the_mean(loss)


@given(
    loss=st.sampled_from(LOSSES),
    n=st.integers(2, 9),
    batch=st.sampled_from([1, 3, 16, 33]),
    cuts=st.lists(st.integers(1, 8), max_size=3),
    seed=seeds,
)
@settings(max_examples=examples(24))
def test_machines_with_some_of_the_scores_agree_with_one_that_has_all(
    loss: Loss, n: int, batch: int, cuts: list[int], seed: int
) -> None:
    given = given_case(loss, n=n, batch=batch, seed=seed)
    whole, parts = Evaluated(given), Evaluated(given, *(cut for cut in cuts if cut < n))
    np.testing.assert_allclose(parts.state, whole.state, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(parts.errors, whole.errors, rtol=1e-12, atol=1e-15)
    for count in (0, batch):
        assert parts.metrics(count) == (pytest.approx(whole.metrics(count)[0]), whole.metrics(count)[1])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equals_torch(loss: Loss, dtype: type) -> None:
    given = given_case(loss, n=1200, dtype=dtype)
    evaluated = Evaluated(given)
    scores = torch.from_numpy(given.inputs[0].reshape(-1, BATCH).T.copy()).requires_grad_()
    target = torch.from_numpy(given.inputs[1].reshape(-1, BATCH).T.copy())
    functions = torch.nn.functional
    if isinstance(loss, SoftmaxCrossEntropy):
        ignored = -100 if loss.ignore_index is None else loss.ignore_index
        smoothing: dict[str, Any] = {"ignore_index": ignored, "label_smoothing": loss.label_smoothing}
        value = functions.cross_entropy(scores, target[:, 0], reduction="sum", **smoothing) / BATCH
    elif isinstance(loss, KLDivergence):
        value = functions.kl_div(scores.log_softmax(1), target, reduction="batchmean")
    elif isinstance(loss, Huber):
        value = functions.huber_loss(scores, target, reduction="sum", delta=loss.delta) / BATCH
    elif isinstance(loss, HalfSquaredError):
        value = 0.5 * ((scores - target) ** 2).sum(dim=1).mean()
    else:
        if isinstance(loss, OneVsRest):
            target = functions.one_hot(target[:, 0], 1200).to(scores.dtype)
        value = functions.binary_cross_entropy_with_logits(scores, target, reduction="sum") / BATCH
    (value * loss.loss_weight).backward()
    assert scores.grad is not None
    assert evaluated.metrics()[0] / BATCH == pytest.approx(value.item(), rel=1e-5)
    np.testing.assert_allclose(
        evaluated.errors.reshape(-1, BATCH).T, scores.grad.numpy(), rtol=1e-4, atol=1e-7
    )


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("cuts", [(), (300,)])
def test_bfloat16_is_rounded_once(loss: Loss, cuts: tuple[int, ...]) -> None:
    given = given_case(loss, n=600, dtype=np.float32).rounded
    evaluated = Evaluated(given, *cuts)
    wide = given.upcast
    expected = wide.reference.forward(wide.inputs)
    np.testing.assert_allclose(evaluated.state, expected, rtol=2.0**-8 * (1 + len(cuts)))
    assert evaluated.metrics()[0] == pytest.approx(expected.sum(), rel=1e-5)  # not of rounded losses
    np.testing.assert_allclose(upcast_array(evaluated.errors), expected_errors(given), rtol=2.0**-7)


@pytest.mark.parametrize("loss", LABELLED)
@pytest.mark.parametrize("cuts", [(), (2, 3)])
def test_counts_the_right_among_the_first_examples(loss: Loss, cuts: tuple[int, ...]) -> None:
    assert_counts_right_examples(loss, cuts)


def test_a_target_of_numbers_is_neither_right_nor_wrong() -> None:
    assert Evaluated(given_case(HalfSquaredError())).metrics()[1] == 0
    assert Evaluated(given_case(BinaryCrossEntropy())).metrics()[1] == 0


@pytest.mark.parametrize("loss", LOSSES[:3])
@pytest.mark.parametrize("cuts", [(), (2, 3)])
def test_large_scores_neither_overflow_nor_vanish(loss: Loss, cuts: tuple[int, ...]) -> None:
    assert_large_scores_stay_finite(loss, cuts)


@pytest.mark.parametrize("loss", LABELLED)
@pytest.mark.parametrize("cuts", [(), (2, 3)])
def test_a_score_that_is_no_number_is_found_in_the_loss(loss: Loss, cuts: tuple[int, ...]) -> None:
    assert_nan_score_shows_in_loss(loss, cuts)


@pytest.mark.parametrize("loss", LABELLED)
@pytest.mark.parametrize("label", [-1, 5])
def test_a_label_that_is_no_class_is_refused(loss: Loss, label: int) -> None:
    given = given_case(loss)
    given.inputs[1][0, 2] = label
    message = rf"{loss.kind} '.*' was given the label {label}; .*labels are 0 to 4"
    with pytest.raises(ValueError, match=message):  # when it is computed, or when the loss is read
        Evaluated(given).metrics()
