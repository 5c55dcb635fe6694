"""Losses on a device of torch, over scores `[score, example]` and a target; each machine evaluates its
own.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

import torch

from partita.engine.kernels.kernel import Arrays, Call, KernelContext, LossKernel
from partita.engine.kernels.losses import refuse_label
from partita.engine.kernels.on_torch.tensor_kernel import TensorKernel, columns, rows_of
from partita.engine.kernels.tensors import tensor_of
from partita.engine.kernels.thread_pool import ThreadPool
from partita.layers import BinaryCrossEntropy, HalfSquaredError, OneVsRest, SoftmaxCrossEntropy
from partita.layers.box import Spans


class _ScoresKernel(TensorKernel, LossKernel):
    """The scores of this machine, and where their gradient goes."""

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        self.scores = columns(self.inputs[0])
        self.first = context.windows[0][0] * context.sources[0].nodes_per_row
        self.evaluated = self.zeros(3, context.batch, dtype=torch.float64)
        """For each example the loss, whether the scores are right, and whether its label names no score."""

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Writes the gradient of the scores in these rows."""
        assert source == 0, "a target has no error"
        per_row, window, out = (
            self.context.sources[0].nodes_per_row,
            self.context.grad_windows[0],
            self.grad_input(0),
        )
        places = [
            (slice(a * per_row - self.first, b * per_row - self.first), columns(rows_of(out, (a, b), window)))
            for a, b in rows
        ]

        def call() -> None:
            for here, place in places:
                found = self._gradient(here, self.scores[here].to(self.wide))
                if accumulate:
                    place.add_(found)
                else:
                    place.copy_(found)

        return call

    def metrics(self, count: int) -> tuple[float, int]:
        """The sum of the losses, and the number of right examples; waits for both.

        Raises:
            ValueError: a label names no score.
        """
        loss, n_right, n_wrong = self.evaluated[:, :count].sum(1).tolist()
        if n_wrong:
            self._refuse()
        return loss, int(n_right)

    def _keep(self, losses: torch.Tensor) -> None:
        """Keeps the losses of the examples."""
        self.evaluated[0] = losses
        self.output[0] = losses

    @abstractmethod
    def _gradient(self, here: slice, scores: torch.Tensor) -> torch.Tensor:
        """The gradient of the scores `here`."""

    def _refuse(self) -> None:
        raise AssertionError("only labels can be wrong")


class _LabelKernel(_ScoresKernel):
    """A loss whose target is a label."""

    n_summary: int
    """Numbers of a summary for each example."""

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        self.labels = columns(self.inputs[1])[0]
        self.whole = arrays.summaries is None
        self.summaries = self.zeros(1, self.n_summary, context.batch)
        if arrays.summaries is not None:
            self.summaries = tensor_of(arrays.summaries)
        self.numbers = self.first + torch.arange(len(self.scores), device=self.labels.device)[:, None]

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Computes the loss of each example, as far as it depends on this machine's scores."""
        summarise, classes = self.summarise(0), self.context.sources[0].n_nodes

        def call() -> None:
            if self.whole:
                summarise()
            self.evaluated[2] = (self.labels < 0) | (self.labels >= classes)
            places = self.labels - self.first
            here = (places >= 0) & (places < len(self.scores))
            inside = places.clamp(0, len(self.scores) - 1)[None]
            self._evaluate(here, self.scores.gather(0, inside)[0].double())

        return call

    @abstractmethod
    def _evaluate(self, here: torch.Tensor, scores: torch.Tensor) -> None:
        """Evaluates the examples, given whether the label of each is here, and its score then."""

    def _one_hot(self, here: slice) -> torch.Tensor:
        return (self.labels == self.numbers[here]).to(self.wide)

    def _refuse(self) -> None:
        refuse_label(self.context, int(self.labels[self.evaluated[2] > 0][0]))


class SoftmaxCrossEntropyKernel(_LabelKernel):
    """The negative log of the softmax probability of the right label."""

    layer = SoftmaxCrossEntropy

    n_summary = 2

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        self.saved = self.zeros(2, context.batch)
        """The largest score, and what turns an exponential relative to it into an error."""

    def summarise(self, piece: int) -> Call:
        """Writes each example's largest score, and the sum of exponentials relative to it."""
        summary = self.summaries[piece]

        def call() -> None:
            scores = self.scores.to(self.wide)
            summary[0] = scores.amax(0)
            summary[1] = (scores - summary[0]).exp().sum(0, dtype=torch.float64)

        return call

    def _evaluate(self, here: torch.Tensor, scores: torch.Tensor) -> None:
        summaries = self.summaries.double()
        largest = summaries[:, 0].amax(0)
        total = (summaries[:, 1] * (summaries[:, 0] - largest).exp()).sum(0)
        self.saved[0], self.saved[1] = largest, 1 / (total * self.mean_over)
        losses = torch.where(here, total.log() + (largest - scores), 0)
        self.evaluated[1] = here & (scores >= largest) & losses.isfinite()
        self._keep(losses)

    def _gradient(self, here: slice, scores: torch.Tensor) -> torch.Tensor:
        found = (scores - self.saved[0]).exp() * self.saved[1]
        return found.sub_(self._one_hot(here), alpha=1 / self.mean_over)


class OneVsRestKernel(_LabelKernel):
    """A logistic classifier for each score."""

    layer = OneVsRest

    n_summary = 1

    def summarise(self, piece: int) -> Call:
        """Writes each example's largest score."""
        summary = self.summaries[piece]

        def call() -> None:
            summary[0] = self.scores.amax(0)

        return call

    def _evaluate(self, here: torch.Tensor, scores: torch.Tensor) -> None:
        losses = _softplus_sum(self.scores) - torch.where(here, scores, 0)
        largest = self.summaries[:, 0].amax(0)
        self.evaluated[1] = here & (scores >= largest) & losses.isfinite()
        self._keep(losses)

    def _gradient(self, here: slice, scores: torch.Tensor) -> torch.Tensor:
        return scores.sigmoid().sub_(self._one_hot(here)).div_(self.mean_over)


class _TargetKernel(_ScoresKernel):
    """A loss that compares each score with a number of its own."""

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        self.target = columns(rows_of(self.inputs[1], context.windows[0], context.windows[1]))

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Computes the sum over the scores, for each example."""
        return lambda: self._keep(self._losses(self.scores.double(), self.target.double()))

    @abstractmethod
    def _losses(self, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss of each example."""


class BinaryCrossEntropyKernel(_TargetKernel):
    """The cross-entropy of each score's logistic with its target."""

    layer = BinaryCrossEntropy

    def _losses(self, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return _softplus_sum(scores) - (scores * target).sum(0)

    def _gradient(self, here: slice, scores: torch.Tensor) -> torch.Tensor:
        return scores.sigmoid().sub_(self.target[here]).div_(self.mean_over)


class HalfSquaredErrorKernel(_TargetKernel):
    """Half the sum of squared differences."""

    layer = HalfSquaredError

    def _losses(self, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (scores - target).square().sum(0) / 2

    def _gradient(self, here: slice, scores: torch.Tensor) -> torch.Tensor:
        return (scores - self.target[here]) / self.mean_over


KERNELS: Final = (
    BinaryCrossEntropyKernel,
    HalfSquaredErrorKernel,
    OneVsRestKernel,
    SoftmaxCrossEntropyKernel,
)


def _softplus_sum(scores: torch.Tensor) -> torch.Tensor:
    """Sums `log(1 + exp(score))` for each example, in float64."""
    scores = scores.double()
    return torch.logaddexp(scores, torch.zeros_like(scores)).sum(0)
