"""Losses: against the node definition and torch; they say how well their scores do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from partita.engine.kernels import Array, LossKernel, build
from partita.layers import Loss, SoftmaxCrossEntropy, SquaredError
from tests.kernels.cases import Case, case

BATCH = 7


def given_case(loss: Loss, *, dtype: type = np.float64) -> Case:
    draw = np.random.default_rng(1)
    if isinstance(loss, SoftmaxCrossEntropy):
        return case(loss, (5,), batch=BATCH, target=draw.integers(0, 5, size=(1, BATCH)), dtype=dtype)
    return case(loss, (3, 2), batch=BATCH, target=draw.normal(size=(3, 2, BATCH)), dtype=dtype)


def play(given: Case) -> tuple[LossKernel, Array, Array]:
    kernel = build(given.site())
    assert isinstance(kernel, LossKernel)
    state, errors = np.full_like(given.error, np.nan), np.full_like(given.inputs[0], np.nan)
    kernel.up(given.inputs, state, ())
    ask(kernel, given, state, errors, accumulate=False)
    return kernel, state, errors


def ask(kernel: LossKernel, given: Case, state: Array, out: Array, *, accumulate: bool) -> None:
    rows = ((0, 1), (1, len(out)))
    kernel.errors(
        0,
        rows,
        out,
        sources=given.inputs,
        state=state,
        delta=given.error,
        parameters=(),
        accumulate=accumulate,
    )


@pytest.mark.parametrize("loss", [SoftmaxCrossEntropy(), SquaredError()])
def test_equals_the_definition_and_sends_the_errors_of_the_mean(loss: Loss) -> None:
    given = given_case(loss)
    kernel, state, errors = play(given)
    expected = given.reference.states(given.inputs)
    np.testing.assert_allclose(state, expected, rtol=1e-12)
    mean = np.full_like(state, 1 / BATCH)
    np.testing.assert_allclose(
        errors,
        given.reference.errors_and_gradients(given.inputs, expected, mean)[0][0],
        rtol=1e-9,
        atol=1e-15,
    )
    ask(kernel, given, state, out := errors.copy(), accumulate=True)
    np.testing.assert_allclose(out, 2 * errors, rtol=1e-12)


@pytest.mark.parametrize("loss", [SoftmaxCrossEntropy(), SquaredError()])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equals_torch(loss: Loss, dtype: type) -> None:
    given = given_case(loss, dtype=dtype)
    kernel, state, errors = play(given)
    scores = torch.from_numpy(given.inputs[0].reshape(-1, BATCH).T.copy()).requires_grad_()
    target = torch.from_numpy(given.inputs[1].reshape(-1, BATCH).T.copy())
    if isinstance(loss, SoftmaxCrossEntropy):
        value = torch.nn.functional.cross_entropy(scores, target[:, 0].long())
    else:
        value = 0.5 * ((scores - target) ** 2).sum(dim=1).mean()
    value.backward()
    assert scores.grad is not None
    assert kernel.metrics(given.inputs, state, BATCH)[0] / BATCH == pytest.approx(value.item(), rel=1e-6)
    np.testing.assert_allclose(errors.reshape(-1, BATCH).T, scores.grad.numpy(), rtol=1e-4, atol=1e-7)


def test_counts_the_right_among_the_first_examples() -> None:
    given = given_case(SoftmaxCrossEntropy())
    kernel, state, _ = play(given)
    right = given.inputs[0].argmax(axis=0) == given.inputs[1][0]
    for count in (0, 3, BATCH):
        loss, hits = kernel.metrics(given.inputs, state, count)
        assert loss == pytest.approx(state[0, :count].sum())
        assert hits == right[:count].sum()
    assert play(squared := given_case(SquaredError()))[0].metrics(squared.inputs, state, 3)[1] == 0


def test_large_scores_neither_overflow_nor_vanish() -> None:
    given = given_case(SoftmaxCrossEntropy(), dtype=np.float32)
    given.inputs[0][:] *= 1e4
    _, state, errors = play(given)
    assert np.isfinite(state).all()
    assert np.isfinite(errors).all()


@pytest.mark.parametrize("label", [-1, 5, np.nan])
def test_a_label_that_is_no_class_is_refused(label: float) -> None:
    given = given_case(SoftmaxCrossEntropy())
    given.inputs[1][0, 2] = label
    with pytest.raises(ValueError, match=r"SoftmaxCrossEntropy '.*' was given the label .*labels are 0 to 4"):
        play(given)
