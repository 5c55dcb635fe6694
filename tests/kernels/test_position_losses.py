"""The softmax cross-entropy at positions: against torch in float64, over cuts, threads and batches."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
import pytest
import torch
from torch.nn import functional

from partita.engine.kernels import Array, LossKernel, ThreadPool, build
from partita.engine.kernels.position_loops import GROUP
from partita.engine.kernels.position_losses import PositionCrossEntropyKernel
from partita.engine.numerics import upcast_array
from partita.layers import SoftmaxCrossEntropy
from partita.partitioner.cluster.threads import ThreadShares
from tests.kernels.cases import Case, case

POSITIONS: Final = 6
CLASSES: Final = 2 * GROUP + 5
BATCH: Final = 3
IGNORED: Final = 2
WEIGHT: Final = tuple(0.25 * (k % 5) for k in range(CLASSES))
LOSSES: Final = [
    SoftmaxCrossEntropy(),
    SoftmaxCrossEntropy(ignore_index=IGNORED, loss_weight=0.5),
    SoftmaxCrossEntropy(weight=WEIGHT),
    SoftmaxCrossEntropy(weight=WEIGHT, ignore_index=IGNORED, label_smoothing=0.2),
    SoftmaxCrossEntropy(label_smoothing=0.1),
]


def drawn(loss: SoftmaxCrossEntropy, *, classes: int = CLASSES, dtype: type = np.float64) -> Case:
    """Normal scores four times as large, and labels of which some are ignored."""
    labels = np.random.default_rng(3).integers(0, classes, (POSITIONS, BATCH))
    labels[1, 0] = labels[4, 2] = IGNORED
    given = case(loss, (POSITIONS, classes), batch=BATCH, dtype=dtype, target=labels)
    given.inputs[0][:] *= 4
    return given


def played(given: Case, *cuts: int, pool: ThreadPool | None = None) -> tuple[list[LossKernel], Array]:
    """The kernels of machines with the positions between the cuts, and the gradient of all scores."""
    whole, kernels = given.context(), []
    gradient = np.zeros_like(given.inputs[0])
    for rows in pairwise((0, *cuts, POSITIONS)):
        windows = (rows, whole.windows[1])
        context = replace(whole, windows=windows, grad_windows=windows)
        arrays = replace(given.arrays(context), grad_inputs=(gradient[slice(*rows)], None))
        kernel = build(context, arrays, pool)
        assert isinstance(kernel, PositionCrossEntropyKernel)
        kernel.forward()()
        kernel.backward_input(0, (rows,), accumulate=False)()
        kernels.append(kernel)
    return kernels, gradient


def in_torch(given: Case) -> tuple[Array, Array]:
    """Losses `[position, example]` without the loss's own weight, and the gradient of the scores."""
    loss = given.grid.layer
    assert isinstance(loss, SoftmaxCrossEntropy)
    scores = torch.from_numpy(given.upcast.inputs[0]).double().requires_grad_()
    losses = functional.cross_entropy(
        scores.permute(0, 2, 1).flatten(0, 1),
        torch.from_numpy(given.inputs[1]).flatten(),
        None if loss.weight is None else torch.tensor(loss.weight, dtype=torch.float64),
        ignore_index=-100 if loss.ignore_index is None else loss.ignore_index,
        label_smoothing=loss.label_smoothing,
        reduction="none",
    )
    (loss.loss_weight * losses.mean()).backward()
    assert scores.grad is not None
    return losses.detach().reshape(POSITIONS, -1).numpy(), scores.grad.numpy()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "precision", ["float64", "float32", pytest.param("bfloat16", marks=pytest.mark.slow)]
)
def test_equals_torch_in_float64(loss: SoftmaxCrossEntropy, precision: str) -> None:
    given = drawn(loss, dtype=np.float64 if precision == "float64" else np.float32)
    given = given.rounded if precision == "bfloat16" else given
    losses, wanted = in_torch(given)
    (kernel,), gradient = played(given)
    eps = {"float64": 2.0**-44, "float32": 2.0**-18, "bfloat16": 2.0**-8}[precision]
    np.testing.assert_allclose(upcast_array(kernel.arrays.output)[0], losses, rtol=eps, atol=eps / 256)
    once = upcast_array(gradient)
    np.testing.assert_allclose(once, wanted, rtol=eps, atol=eps / 2**10)
    wide = 1e-12 if precision == "float64" else 1e-6  # metrics are not rounded to the precision
    assert kernel.metrics(BATCH)[0] == pytest.approx(losses.sum() / POSITIONS, rel=wide)
    kernel.backward_input(0, ((2, 4),), accumulate=True)()
    twice = upcast_array(gradient)
    np.testing.assert_allclose(twice[2:4], 2 * wanted[2:4], rtol=2 * eps, atol=eps / 2**9)
    np.testing.assert_array_equal(twice[:2], once[:2])


def test_sums_of_many_float32_scores_are_as_exact_as_each_exponential() -> None:
    given = drawn(LOSSES[0], classes=8_000, dtype=np.float32)
    losses, wanted = in_torch(given)
    (kernel,), gradient = played(given)
    np.testing.assert_allclose(kernel.metrics(BATCH)[0], losses.sum() / POSITIONS, rtol=2.0**-24)
    np.testing.assert_allclose(gradient, wanted, rtol=2.0**-19)  # of a score 16 below the largest


@pytest.mark.parametrize("classes", [2, GROUP, CLASSES])
def test_bits_depend_on_no_cut_nor_thread_nor_batch(classes: int) -> None:
    loss = SoftmaxCrossEntropy(ignore_index=IGNORED, label_smoothing=0.1)
    given = drawn(loss, classes=classes, dtype=np.float32)
    (whole,), gradient = played(given)
    pool = ThreadPool(2, shares=ThreadShares(loop=0.0))
    parts, of_parts = played(given, 1, 4, pool=pool)
    pool.close()
    np.testing.assert_array_equal(of_parts, gradient)
    np.testing.assert_array_equal(sum(part.arrays.output for part in parts), whole.arrays.output)
    fewer = replace(
        given,
        inputs=tuple(array[..., 1:].copy() for array in given.inputs),
        error=given.error[..., 1:].copy(),
    )
    context = replace(fewer.context(), mean_over=BATCH)
    arrays = replace(fewer.arrays(context), grad_inputs=(np.zeros_like(fewer.inputs[0]), None))
    alone = build(context, arrays)
    alone.forward()()
    alone.backward_input(0, ((0, POSITIONS),), accumulate=False)()
    np.testing.assert_array_equal(arrays.grad_input(0), gradient[..., 1:])
    np.testing.assert_array_equal(arrays.output, whole.arrays.output[..., 1:])


def test_counts_right_labels_that_are_not_ignored() -> None:
    given = drawn(LOSSES[1])
    labels = given.inputs[1]
    best = given.inputs[0].argmax(axis=1)
    labels[3], best[1, 0] = best[3], IGNORED
    kernels, _ = played(given, 2)
    right = (best == labels) & (labels != IGNORED)
    for count in (0, 2, BATCH):
        assert sum(kernel.metrics(count)[1] for kernel in kernels) == right[:, :count].sum()
        found = {kernel.count_labels(count) for kernel in kernels}
        assert found == {int((labels[:, :count] != IGNORED).sum())}


def test_no_number_shows_in_the_loss_of_its_position_and_nowhere_if_ignored() -> None:
    given = drawn(LOSSES[3])
    given.inputs[0][1, 7, 0] = np.nan  # ignored
    given.inputs[0][2, 7, 1] = np.nan
    (kernel,), gradient = played(given)
    assert np.argwhere(np.isnan(kernel.arrays.output[0])).tolist() == [[2, 1]]
    assert np.isnan(gradient[2, :, 1]).any() and not gradient[1, :, 0].any()
    assert np.isfinite(np.delete(gradient, 2, axis=0)).all()
    assert np.isnan(kernel.metrics(BATCH)[0])


@pytest.mark.parametrize("label", [-1, CLASSES])
def test_a_label_that_is_no_class_is_refused(label: int) -> None:
    given = drawn(LOSSES[0])
    given.inputs[1][2, 2] = label
    kernels, _ = played(given, 3)
    assert kernels[0].metrics(2)[0] > 0  # the example only fills the batch
    with pytest.raises(ValueError, match=rf"was given the label {label}; .*labels are 0 to {CLASSES - 1}"):
        kernels[0].metrics(BATCH)
