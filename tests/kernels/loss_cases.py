"""Losses, scores and targets; and how to play them whole, or on machines that have some of the scores."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from partita.engine.kernels import Array, LossKernel, build
from partita.engine.numerics import upcast_array
from partita.layers import (
    BinaryCrossEntropy,
    HalfSquaredError,
    Huber,
    KLDivergence,
    LabelLoss,
    Loss,
    OneVsRest,
    SoftmaxCrossEntropy,
)
from tests.kernels.cases import Case, case, unwritten

LOSSES = [
    SoftmaxCrossEntropy(),
    OneVsRest(),
    BinaryCrossEntropy(),
    HalfSquaredError(),
    SoftmaxCrossEntropy(label_smoothing=0.1),
    SoftmaxCrossEntropy(ignore_index=1, label_smoothing=0.25, loss_weight=0.3),
    KLDivergence(),
    Huber(0.5),
]


LABELLED = LOSSES[:2]


BATCH = 7


def given_case(
    loss: Loss, *, n: int = 5, batch: int = BATCH, seed: int = 1, dtype: type = np.float64
) -> Case:
    """Scores of size `n`, or `n` by 2, and a target that suits the loss."""
    draw = np.random.default_rng(seed)
    labelled = isinstance(loss, LabelLoss)
    scores = (n,) if loss.summary((1,)) else (n, 2)
    target = draw.integers(0, n, size=(1, batch)) if labelled else draw.uniform(size=(*scores, batch))
    return case(loss, scores, batch=batch, seed=seed, target=target, dtype=dtype)


class Evaluated:
    """Results of machines that have the scores between the cuts; one alone has all of them."""

    def __init__(self, given: Case, *cuts: int) -> None:
        layer, n = given.grid.layer, len(given.inputs[0])
        assert isinstance(layer, Loss)
        edges = [0, *sorted(set(cuts) - {0, n}), n]
        self.errors = unwritten(given.inputs[0])
        self.kernels: list[LossKernel] = []
        whole = given.context()
        summary = layer.summary((1,))
        shape = summary.shape if summary else (0,)
        summaries = np.zeros((len(edges) - 1, *shape, given.batch), whole.master)
        for rows in pairwise(edges):
            windows = (rows, whole.windows[1])
            context = replace(whole, windows=windows, grad_windows=windows)
            arrays = replace(
                given.arrays(context),
                grad_inputs=(self.errors[slice(*rows)], None),
                summaries=summaries if len(edges) > 2 and summary else None,
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
