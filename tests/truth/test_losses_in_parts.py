"""Losses over any cut of their scores: values and gradients of the whole network in torch, float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from partita.layers import (
    BinaryCrossEntropy,
    Dense,
    HalfSquaredError,
    Huber,
    KLDivergence,
    LabelLoss,
    Linear,
    Loss,
    Network,
    OneVsRest,
    ScoreLoss,
    SoftmaxCrossEntropy,
)
from partita.layers.contract import Step, Tensor
from partita.partitioner import Cluster, Whole, partition
from tests.draws import examples
from tests.truth.interleaved import play_with

Array: TypeAlias = npt.NDArray[Any]
Theirs: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Losses `[example]`, or `[example, position]`, from scores with the classes on axis 1, and targets."""

POSITIONS: Final = 6
CLASSES: Final = 7
BATCH: Final = 5
WEIGHT: Final = (1.0, 2.0, 0.5, 0.0, 3.0, 1.0, 0.25)


@dataclass(frozen=True)
class LogCosh(ScoreLoss):
    """A loss of a user's own: a sum over the scores, by autograd."""

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The sum over these scores."""
        scores, target = inputs
        return (scores - target).cosh().log().sum(0, keepdim=True)


@dataclass(frozen=True)
class CosineDistance(ScoreLoss):
    """A loss of a user's own that is no sum over the scores."""

    splits_scores = False

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """1 less the cosine."""
        return 1 - step.torch.cosine_similarity(*inputs, dim=0)[None]


def cross_entropy(loss: SoftmaxCrossEntropy) -> Theirs:
    """PyTorch's with the same settings, for each label."""
    weight = None if loss.weight is None else torch.tensor(loss.weight, dtype=torch.float64)
    ignored = -100 if loss.ignore_index is None else loss.ignore_index
    smoothing = loss.label_smoothing
    return lambda scores, target: functional.cross_entropy(
        scores, target, weight, ignore_index=ignored, label_smoothing=smoothing, reduction="none"
    )


ROWS: Final[list[tuple[Loss, Theirs]]] = [
    *((one, cross_entropy(one)) for one in (SoftmaxCrossEntropy(), SoftmaxCrossEntropy(WEIGHT, -1, 0.1))),
    (KLDivergence(), lambda s, t: functional.kl_div(s.log_softmax(1), t, reduction="none").sum(1)),
    (Huber(0.3), lambda s, t: functional.huber_loss(s, t, delta=0.3, reduction="none").sum(1)),
    (HalfSquaredError(), lambda s, t: (s - t).square().sum(1) / 2),
    (
        BinaryCrossEntropy(loss_weight=-2.0),
        lambda s, t: functional.binary_cross_entropy_with_logits(s, t, reduction="none").sum(1),
    ),
    (
        OneVsRest(),
        lambda s, t: functional.binary_cross_entropy_with_logits(
            s, functional.one_hot(t, CLASSES).double(), reduction="none"
        ).sum(1),
    ),
    (LogCosh(), lambda s, t: (s - t).cosh().log().sum(1)),
    (CosineDistance(), lambda s, t: 1 - functional.cosine_similarity(s, t)),
]
"""A row of scores, with a label or a number for each."""

OVER_POSITIONS: Final = ROWS[:3]


@st.composite
def drawn(draw: st.DrawFn) -> tuple[Loss, Theirs, bool]:
    """A loss, and whether it is over positions."""
    positions = draw(st.booleans())
    return (*draw(st.sampled_from(OVER_POSITIONS if positions else ROWS)), positions)


@settings(max_examples=examples(12), deadline=None)
@given(
    drawn=drawn(),
    machines=st.integers(1, 6),
    weighted=st.booleans(),
    one_has_all=st.booleans(),
    micro_batches=st.sampled_from([None, 2]),
    seed=st.integers(0, 1 << 20),
)
def test_equals_torch_under_any_cut(
    drawn: tuple[Loss, Theirs, bool],
    machines: int,
    weighted: bool,
    one_has_all: bool,
    micro_batches: int | None,
    seed: int,
) -> None:
    loss, theirs, positions = drawn
    net, draw = Network("evaluated"), np.random.default_rng(seed)
    shape = (POSITIONS, CLASSES) if positions else (CLASSES,)
    x = net.input("x", shape=(POSITIONS, 3) if positions else 4)
    scores = (Linear if positions else Dense)(CLASSES, name="scores")(x)
    net.loss = loss(scores, net.target("y"), sample_weight=net.target("w") if weighted else None)
    batch = 2 * BATCH if micro_batches else BATCH
    plan = partition(
        net,
        Cluster.local(machines=machines),
        batch=batch,
        precision="float64",
        strategy="balanced",
        cuts={name: Whole(machines - 1) for name in net.graph().losses if one_has_all},
        micro_batches=micro_batches,
    )
    given = {"x": draw.normal(size=(batch, *x.shape))}
    if isinstance(loss, LabelLoss):
        least = 0 if loss.ignored is None else -1
        given["y"] = draw.integers(least, CLASSES, size=(batch, *(shape[:-1] or (1,))))
    else:
        given["y"] = draw.dirichlet(np.ones(CLASSES), size=(batch, *shape[:-1]))
    weights = draw.uniform(size=(batch, POSITIONS if positions else 1)) if weighted else np.ones((batch, 1))
    if weighted:
        given["w"] = weights
    parameters = {name: draw.normal(size=p.shape) for name, p in plan.graph.parameters.items()}
    found = play_with(plan, parameters, given)
    expected, gradients = in_torch(theirs, given, parameters, weights)
    assert found.loss / batch == pytest.approx(loss.loss_weight * expected, rel=1e-12, abs=1e-14)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(found.gradients[name], loss.loss_weight * gradient, rtol=1e-9, atol=1e-13)


def in_torch(
    theirs: Theirs, given: dict[str, Array], parameters: dict[str, Array], weights: Array
) -> tuple[float, dict[str, Array]]:
    """The mean over examples and positions, and the gradients."""
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in parameters.items()}
    scores = torch.from_numpy(given["x"]) @ leaves["scores.weight"].T + leaves["scores.bias"]
    target = torch.from_numpy(given["y"])
    if target.dtype == torch.int64:
        target = target if scores.ndim == 3 else target[:, 0]
    elif scores.ndim == 3:
        target = target.movedim(-1, 1)
    losses = theirs(scores.movedim(-1, 1), target)
    mean = (losses.reshape(len(scores), -1) * torch.from_numpy(weights)).mean()
    mean.backward()
    return mean.item(), {name: leaf.grad.numpy() for name, leaf in leaves.items() if leaf.grad is not None}
