"""Assertions over the kernels of losses, whole or over machines that have some of the scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from partita.engine.kernels import Array
from partita.layers import Loss
from tests.kernels.cases import Case, case
from tests.kernels.loss_cases import BATCH, Evaluated, given_case


def expected_errors(given: Case) -> Array:
    """Errors of the mean loss."""
    given = given.upcast
    states = given.reference.forward(given.inputs)
    assert isinstance(given.grid.layer, Loss)
    mean = np.full_like(states, given.grid.layer.loss_weight / given.batch)
    return given.reference.backward(given.inputs, states, mean)[0][0]


def assert_loss_and_errors_of_the_mean(loss: Loss) -> None:
    """Asserts that a loss and its errors equal the node definition, and that errors accumulate."""
    given = given_case(loss)
    evaluated = Evaluated(given)
    np.testing.assert_allclose(evaluated.state, given.reference.forward(given.inputs), rtol=1e-12)
    np.testing.assert_allclose(evaluated.errors, expected_errors(given), rtol=1e-9, atol=1e-15)
    once = evaluated.errors.copy()
    evaluated.ask(accumulate=True)
    np.testing.assert_allclose(evaluated.errors, 2 * once, rtol=1e-12)


def assert_counts_right_examples(loss: Loss, cuts: tuple[int, ...]) -> None:
    """Asserts that the metrics count the first examples alone."""
    given = given_case(loss)
    evaluated = Evaluated(given, *cuts)
    right = given.inputs[0].argmax(axis=0) == given.inputs[1][0]
    assert 0 < right.sum() < BATCH
    for count in (0, 3, BATCH):
        total, hits = evaluated.metrics(count)
        assert total == pytest.approx(evaluated.state[0, :count].sum())
        assert hits == right[:count].sum()


def assert_large_scores_stay_finite(loss: Loss, cuts: tuple[int, ...]) -> None:
    """Asserts that scores of size 10000 give the loss and errors of the definition."""
    given = given_case(loss, dtype=np.float32)
    given.inputs[0][:] *= 1e4
    evaluated = Evaluated(given, *cuts)
    wide = case(loss, *(source.shape for source in given.sources[:1]), batch=BATCH, target=given.inputs[1])
    wide = replace(wide, inputs=(given.inputs[0].astype(np.float64), given.inputs[1]))
    np.testing.assert_allclose(evaluated.state, wide.reference.forward(wide.inputs), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(evaluated.errors, expected_errors(wide), rtol=1e-5, atol=1e-7)


def assert_nan_score_shows_in_loss(loss: Loss, cuts: tuple[int, ...]) -> None:
    """Asserts that a NaN among the scores shows in the loss of its example alone."""
    given = given_case(loss)
    given.inputs[0][1, 2] = np.nan
    evaluated = Evaluated(given, *cuts)
    assert np.isnan(evaluated.state[0]).tolist() == [example == 2 for example in range(BATCH)]
    assert np.isnan(evaluated.errors[1, 2])
