"""Losses: against the node definition and torch, whole and by machines that each judge some of the scores."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels import Array, LossKernel, build
from partita.engine.numerics import upcast_array
from partita.layers import BinaryCrossEntropy, HalfSquaredError, Loss, OneVsRest, SoftmaxCrossEntropy
from tests.draws import examples
from tests.kernels.cases import Case, case, seeds, unwritten

LOSSES = [SoftmaxCrossEntropy(), OneVsRest(), BinaryCrossEntropy(), HalfSquaredError()]
LABELLED = LOSSES[:2]
BATCH = 7


def given_case(
    loss: Loss, *, n: int = 5, batch: int = BATCH, seed: int = 1, dtype: type = np.float64
) -> Case:
    """Scores of size `n`, or `n` by 2, and a target that suits the loss."""
    draw = np.random.default_rng(seed)
    labelled = bool(loss.summary_rows)
    target = draw.integers(0, n, size=(1, batch)) if labelled else draw.uniform(size=(n, 2, batch))
    return case(loss, (n,) if labelled else (n, 2), batch=batch, seed=seed, target=target, dtype=dtype)


class Evaluated:
    """Results of machines that have the scores between the cuts; one alone has all of them."""

    def __init__(self, given: Case, *cuts: int) -> None:
        layer, n = given.grid.layer, len(given.inputs[0])
        assert isinstance(layer, Loss)
        edges = [0, *sorted(set(cuts) - {0, n}), n]
        self.errors = unwritten(given.inputs[0])
        self.kernels: list[LossKernel] = []
        whole = given.context()
        summaries = np.zeros((len(edges) - 1, layer.summary_rows, given.batch), whole.master)
        for rows in pairwise(edges):
            windows = (rows, whole.windows[1])
            context = replace(whole, windows=windows, grad_windows=windows)
            arrays = replace(
                given.arrays(context),
                grad_inputs=(self.errors[slice(*rows)], None),
                summaries=summaries if len(edges) > 2 and layer.summary_rows else None,
            )
            kernel = build(context, arrays)
            assert isinstance(kernel, LossKernel)
            self.kernels.append(kernel)
        if len(edges) > 2:
            for piece, kernel in enumerate(self.kernels):
                kernel.summarise(piece)()
        for kernel in self.kernels:
            kernel.forward()()
        self.ask(accumulate=False)

    def ask(self, *, accumulate: bool) -> None:
        """The errors, row after row."""
        for kernel in self.kernels:
            start, stop = kernel.context.windows[0]
            kernel.backward_input(
                0, tuple((row, row + 1) for row in range(start, stop)), accumulate=accumulate
            )()

    def metrics(self, count: int = BATCH) -> tuple[float, int]:
        """Metrics over all machines."""
        found = [kernel.metrics(count) for kernel in self.kernels]
        return sum(loss for loss, _ in found), sum(right for _, right in found)

    @property
    def state(self) -> Array:
        """The loss of each example."""
        found: Array = sum(upcast_array(kernel.arrays.output) for kernel in self.kernels)
        return found


def expected_errors(given: Case) -> Array:
    """Errors of the mean loss."""
    given = given.upcast
    states = given.reference.forward(given.inputs)
    mean = np.full_like(states, 1 / given.batch)
    return given.reference.backward(given.inputs, states, mean)[0][0]


@pytest.mark.parametrize("loss", LOSSES)
def test_equals_the_definition_and_sends_the_errors_of_the_mean(loss: Loss) -> None:
    given = given_case(loss)
    evaluated = Evaluated(given)
    np.testing.assert_allclose(evaluated.state, given.reference.forward(given.inputs), rtol=1e-12)
    np.testing.assert_allclose(evaluated.errors, expected_errors(given), rtol=1e-9, atol=1e-15)
    once = evaluated.errors.copy()
    evaluated.ask(accumulate=True)
    np.testing.assert_allclose(evaluated.errors, 2 * once, rtol=1e-12)


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
        value = functions.cross_entropy(scores, target[:, 0])
    elif isinstance(loss, HalfSquaredError):
        value = 0.5 * ((scores - target) ** 2).sum(dim=1).mean()
    else:
        if isinstance(loss, OneVsRest):
            target = functions.one_hot(target[:, 0], 1200).to(scores.dtype)
        value = functions.binary_cross_entropy_with_logits(scores, target, reduction="sum") / BATCH
    value.backward()
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
    given = given_case(loss)
    evaluated = Evaluated(given, *cuts)
    right = given.inputs[0].argmax(axis=0) == given.inputs[1][0]
    assert 0 < right.sum() < BATCH
    for count in (0, 3, BATCH):
        total, hits = evaluated.metrics(count)
        assert total == pytest.approx(evaluated.state[0, :count].sum())
        assert hits == right[:count].sum()


def test_a_target_of_numbers_is_neither_right_nor_wrong() -> None:
    assert Evaluated(given_case(HalfSquaredError())).metrics()[1] == 0
    assert Evaluated(given_case(BinaryCrossEntropy())).metrics()[1] == 0


@pytest.mark.parametrize("loss", LOSSES[:3])
@pytest.mark.parametrize("cuts", [(), (2, 3)])
def test_large_scores_neither_overflow_nor_vanish(loss: Loss, cuts: tuple[int, ...]) -> None:
    given = given_case(loss, dtype=np.float32)
    given.inputs[0][:] *= 1e4
    evaluated = Evaluated(given, *cuts)
    wide = case(loss, *(source.shape for source in given.sources[:1]), batch=BATCH, target=given.inputs[1])
    wide = replace(wide, inputs=(given.inputs[0].astype(np.float64), given.inputs[1]))
    np.testing.assert_allclose(evaluated.state, wide.reference.forward(wide.inputs), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(evaluated.errors, expected_errors(wide), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("loss", LABELLED)
@pytest.mark.parametrize("cuts", [(), (2, 3)])
def test_a_score_that_is_no_number_is_found_in_the_loss(loss: Loss, cuts: tuple[int, ...]) -> None:
    given = given_case(loss)
    given.inputs[0][1, 2] = np.nan
    evaluated = Evaluated(given, *cuts)
    assert np.isnan(evaluated.state[0]).tolist() == [example == 2 for example in range(BATCH)]
    assert np.isnan(evaluated.errors[1, 2])


@pytest.mark.parametrize("loss", LABELLED)
@pytest.mark.parametrize("label", [-1, 5])
def test_a_label_that_is_no_class_is_refused(loss: Loss, label: int) -> None:
    given = given_case(loss)
    given.inputs[1][0, 2] = label
    message = rf"{loss.kind} '.*' was given the label {label}; .*labels are 0 to 4"
    with pytest.raises(ValueError, match=message):
        Evaluated(given)
