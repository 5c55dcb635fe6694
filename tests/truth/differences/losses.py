"""Checks of losses: what they sum, and what their means divide by."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import torch

from partita.engine import Session
from partita.engine.parameters import initialise
from partita.layers import (
    BinaryCrossEntropy,
    Dense,
    HalfSquaredError,
    Huber,
    KLDivergence,
    Loss,
    Network,
    OneVsRest,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, partition
from tests.kernels.cases import case
from tests.truth.differences.rows import BATCH, N, row


def losses(
    loss: Loss, target: Any, theirs: torch.nn.Module, their_target: torch.Tensor
) -> tuple[float, float]:
    """The mean loss of the examples, ours and torch's."""
    given_case = case(loss, (N,), batch=BATCH, target=target)
    ours = given_case.reference.forward(given_case.inputs).mean()
    return float(ours), float(theirs(torch.from_numpy(given_case.inputs[0].T.copy()), their_target))


LABELS = np.array([[1, 0, 4, 2]])
NUMBERS = np.random.default_rng(0).uniform(size=(N, BATCH))


def one_by_one(loss: Loss, target: Any, theirs: torch.nn.Module, wanted: torch.Tensor, scale: float) -> bool:
    """Whether two losses are the same; if not, the page's scale must lie between them."""
    ours, found = losses(loss, target, theirs, wanted)
    np.testing.assert_allclose(ours, scale * found, rtol=1e-10)
    return math.isclose(ours, found, rel_tol=1e-6)


@row("`SoftmaxCrossEntropy`")
def _() -> bool:
    theirs, wanted = torch.nn.CrossEntropyLoss(), torch.from_numpy(LABELS[0])
    return one_by_one(SoftmaxCrossEntropy(), LABELS, theirs, wanted, 1)


WEIGHT = (0.5, 1.0, 2.0, 1.0, 3.0)


@row("`SoftmaxCrossEntropy` with `weight` or `ignore_index`")
def _() -> bool:
    wanted = torch.from_numpy(LABELS[0])
    weighted = torch.nn.CrossEntropyLoss(torch.tensor(WEIGHT).double())
    share = sum(WEIGHT[label] for label in LABELS[0]) / BATCH
    same = one_by_one(SoftmaxCrossEntropy(WEIGHT), LABELS, weighted, wanted, share)
    ignoring = torch.nn.CrossEntropyLoss(ignore_index=4)
    return same or one_by_one(SoftmaxCrossEntropy(ignore_index=4), LABELS, ignoring, wanted, 1 - 1 / BATCH)


@row("mean of `SoftmaxCrossEntropy` over micro-batches and parts")
def _() -> bool:
    """Ours is one number for 1 to 3 parts and micro-batches; torch's mean of means is another."""
    scores, labels = np.random.default_rng(3).normal(size=(BATCH, N)), LABELS[0]
    found = []
    for machines, micro_batches in ((1, 1), (1, 2), (2, 1), (3, 2)):
        net = Network("scores")
        dense = Dense(N, initialiser=lambda shape, rng: np.eye(N), name="dense")(net.input("x", shape=N))
        net.loss = SoftmaxCrossEntropy(WEIGHT, ignore_index=4)(dense, net.target("y"))
        settings: Any = {"strategy": "balanced", "precision": "float64", "micro_batches": micro_batches}
        plan = partition(net, Cluster.local(machines=machines), batch=BATCH, **settings)
        start = initialise(plan.graph.parameters.values(), 0, dtype="float64")
        with Session(plan, start, train=True) as session:
            found.append(session.step({"x": scores, "y": labels}).loss)
    np.testing.assert_allclose(found, found[0], rtol=1e-12)
    theirs = torch.nn.CrossEntropyLoss(torch.tensor(WEIGHT).double(), ignore_index=4)
    given = torch.from_numpy(scores), torch.from_numpy(labels)
    halves = [theirs(*(one[half : half + BATCH // 2] for one in given)) for half in (0, BATCH // 2)]
    return math.isclose(float(sum(halves)) / 2, float(theirs(*given)), rel_tol=1e-6)


@row("`label_smoothing` of `SoftmaxCrossEntropy`")
def _() -> bool:
    theirs, wanted = torch.nn.CrossEntropyLoss(label_smoothing=0.2), torch.from_numpy(LABELS[0])
    assert inspect.signature(torch.nn.CrossEntropyLoss).parameters["label_smoothing"].default == 0
    return one_by_one(SoftmaxCrossEntropy(label_smoothing=0.2), LABELS, theirs, wanted, 1)


@row("`ignore_index` by default")
def _() -> bool:
    assert inspect.signature(torch.nn.CrossEntropyLoss).parameters["ignore_index"].default == -100
    return SoftmaxCrossEntropy().ignore_index == -100


@row("`KLDivergence`")
def _() -> bool:
    target = NUMBERS / NUMBERS.sum(axis=0)
    theirs, wanted = torch.nn.KLDivLoss(reduction="batchmean"), torch.from_numpy(target.T.copy())
    scores = case(KLDivergence(), (N,), batch=BATCH, target=target).inputs[0].T.copy()
    ours, found = losses(KLDivergence(), target, theirs, wanted)
    logs = float(theirs(torch.from_numpy(scores).log_softmax(1), wanted))
    np.testing.assert_allclose(ours, logs, rtol=1e-10)
    return math.isclose(ours, found, rel_tol=1e-6)


@row("`Huber`")
def _() -> bool:
    wanted = torch.from_numpy(NUMBERS.T.copy())
    assert inspect.signature(torch.nn.HuberLoss).parameters["delta"].default == Huber().delta
    return one_by_one(Huber(0.3), NUMBERS, torch.nn.HuberLoss(delta=0.3), wanted, N)


@row("`BinaryCrossEntropy`")
def _() -> bool:
    theirs, wanted = torch.nn.BCEWithLogitsLoss(), torch.from_numpy(NUMBERS.T.copy())
    return one_by_one(BinaryCrossEntropy(), NUMBERS, theirs, wanted, N)


@row("`OneVsRest`")
def _() -> bool:
    wanted = torch.nn.functional.one_hot(torch.from_numpy(LABELS[0]), N).double()
    return one_by_one(OneVsRest(), LABELS, torch.nn.BCEWithLogitsLoss(), wanted, N)


@row("`HalfSquaredError`")
def _() -> bool:
    theirs, wanted = torch.nn.MSELoss(), torch.from_numpy(NUMBERS.T.copy())
    return one_by_one(HalfSquaredError(), NUMBERS, theirs, wanted, N / 2)
