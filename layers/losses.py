"""Losses: one node that reads all scores and a target, and whose activation is an example's loss.

A loss is a single node. Where its mathematics allows, every machine that owns scores computes it from those
and from a summary of the others' scores; else one machine receives all scores. The loss of an example is a
sum over its scores, as each class says; its gradient is that of the *mean* over the examples of the batch, so
that a learning rate means the same for every batch size.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from partita.layers.box import Shape
from partita.layers.connectivity import Connectivity, Full
from partita.layers.contract import Step, Summary, Tensor
from partita.layers.layer import Layer, NodeDefinition


@dataclass(frozen=True)
class Loss(Layer):
    """Called on scores and a target: `SoftmaxCrossEntropy()(scores, net.target("digit"))`."""

    slowdown = 12.0
    cuttable = False
    several_inputs = True
    splits_scores: ClassVar[bool] = False
    """Whether machines may each evaluate their own scores; their losses of an example then add up."""
    flops_per_score: ClassVar[float] = 8.0
    """Operations for each score: an exponential and a few more."""

    name: str | None = field(default=None, kw_only=True)

    @property
    def connectivity(self) -> Connectivity:
        """All of the scores."""
        return Full()

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of one node."""
        return (1,)

    @abstractmethod
    def target(self, scores: Shape) -> tuple[Shape, int | None]:
        """The shape of the target for scores of this shape, and the number of classes where it is a label.

        Raises:
            ValueError: the loss takes no scores of this shape.
        """

    def right(self, step: Step, inputs: tuple[Tensor, ...]) -> Tensor | None:
        """Whether each example is right, bool `[example]`, as far as these scores tell; None without labels.

        The losses of the examples are the result of `forward`, `[1, example]`; those of all machines add up.
        """
        return None

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """Operations of all scores."""
        return self.flops_per_score * math.prod(sources[0])


@dataclass(frozen=True)
class LabelLoss(Loss):
    """A loss whose target is a label, from 0."""

    splits_scores = True

    def target(self, scores: Shape) -> tuple[Shape, int | None]:
        """A label for each example.

        Raises:
            ValueError: the scores are not a row of two or more.
        """
        if len(scores) != 1 or scores[0] < 2:
            raise ValueError(
                f"the scores have shape {scores}; give it one score for each class, for example Dense(10)"
            )
        return (1,), scores[0]

    def right(self, step: Step, inputs: tuple[Tensor, ...]) -> Tensor | None:
        """Whether the label's score is here, finite, and the largest of all: a summary's first number."""
        here, score = _labelled(step, *inputs)
        return here & (score >= step.summary[0]) & score.isfinite()


@dataclass(frozen=True)
class ScoreLoss(Loss):
    """A loss whose target has the shape of the scores."""

    splits_scores = True

    def target(self, scores: Shape) -> tuple[Shape, int | None]:
        """One number for each score."""
        return scores, None


@dataclass(frozen=True)
class SoftmaxCrossEntropy(LabelLoss):
    """The negative log of the softmax probability of the right class; the target is its label, from 0.

    Mean over the examples.
    """

    def summary(self, shape: Shape) -> Summary:
        """The largest score, and the sum of exponentials relative to it."""
        return Summary((2,))

    def summarise(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """Both, of these scores."""
        largest = inputs[0].amax(0)
        total = (inputs[0] - largest).exp().sum(0, dtype=step.torch.float64)
        return step.torch.stack((largest.to(total.dtype), total))

    def combine(self, step: Step, summaries: Tensor) -> Tensor:
        """The largest of all, and the sum relative to that, in float64."""
        largest, totals = summaries.double().unbind(1)
        most = largest.amax(0)
        return step.torch.stack((most, (totals * (largest - most).exp()).sum(0)))

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The loss, where the label's score is here; else 0."""
        (largest, total), (here, score) = step.summary, _labelled(step, *inputs)
        return step.torch.where(here, total.log() + (largest - score), 0.0)[None]

    def backward(
        self,
        step: Step,
        inputs: tuple[Tensor, ...],
        parameters: tuple[Tensor, ...],
        output: Tensor,
        grad_output: Tensor,
    ) -> tuple[tuple[Tensor | None, ...], tuple[Tensor, ...]]:
        """Returns `softmax - one hot`, for which no machine needs more than the summary."""
        scores, (largest, total) = inputs[0], step.summary.to(inputs[0].dtype)
        share = (scores - largest).exp() / total
        return ((share - _one_hot(step, *inputs)) * grad_output, None), ()

    @property
    def definition(self) -> NodeDefinition:
        """The loss of one example with a label; the gradient is `softmax - one hot`."""

        def upward(incoming, label):  # type: ignore[no-untyped-def]
            largest = max(incoming)
            total = 0.0
            for score in incoming:
                total += math.exp(score - largest)
            return math.log(total) + largest - incoming[label]

        def downward(incoming, label, state, error):  # type: ignore[no-untyped-def]
            errors = 0.0 * incoming
            for k in range(len(incoming)):
                errors[k] = error * math.exp(incoming[k] - incoming[label] - state)
            errors[label] -= error
            return errors

        return NodeDefinition(upward, downward)


@dataclass(frozen=True)
class OneVsRest(LabelLoss):
    """A logistic classifier for each class, which decides whether an example has it; the target is a label.

    The loss of an example is the **sum** of its classifiers' cross-entropies; mean over the examples.

    Source: DistBelief, section 5, the 21,000 outputs of the image model.
    """

    def summary(self, shape: Shape) -> Summary:
        """The largest score, by which an example is counted as right."""
        return Summary((1,))

    def summarise(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The largest of these scores."""
        return inputs[0].amax(0, keepdim=True)

    def combine(self, step: Step, summaries: Tensor) -> Tensor:
        """The largest of all."""
        return summaries.amax(0)

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The sum over these classifiers."""
        here, score = _labelled(step, *inputs)
        return _softplus_sums(step, inputs[0]) - step.torch.where(here, score, 0.0)

    def backward(
        self,
        step: Step,
        inputs: tuple[Tensor, ...],
        parameters: tuple[Tensor, ...],
        output: Tensor,
        grad_output: Tensor,
    ) -> tuple[tuple[Tensor | None, ...], tuple[Tensor, ...]]:
        """Returns `logistic - one hot`, times the gradient of the loss."""
        shares, places = inputs[0].sigmoid(), inputs[1] - step.windows[0][0]
        here = (places >= 0) & (places < len(shares))
        shares.scatter_add_(0, places.clamp(0, len(shares) - 1), -here.to(shares.dtype))
        return (shares.mul_(grad_output), None), ()

    @property
    def definition(self) -> NodeDefinition:
        """The sum of all classifiers' losses of one example; the gradient is `logistic - one hot`."""

        def upward(incoming, label):  # type: ignore[no-untyped-def]
            return _softplus_sum(incoming) - incoming[label]

        def downward(incoming, label, state, error):  # type: ignore[no-untyped-def]
            errors = error * _logistics(incoming)
            errors[label] -= error
            return errors

        return NodeDefinition(upward, downward)


@dataclass(frozen=True)
class BinaryCrossEntropy(ScoreLoss):
    """The cross-entropy of `logistic(score)` with a target from 0 to 1, for each score.

    The target has the shape of the scores, so that an example may be of several classes, or of none. The loss
    of an example is the **sum** over its scores (Keras takes their mean); mean over the examples.
    """

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The sum over these scores."""
        scores, targets = (one.flatten(0, -2) for one in inputs)
        return _softplus_sums(step, scores) - (scores.double() * targets.double()).sum(0)

    def backward(
        self,
        step: Step,
        inputs: tuple[Tensor, ...],
        parameters: tuple[Tensor, ...],
        output: Tensor,
        grad_output: Tensor,
    ) -> tuple[tuple[Tensor | None, ...], tuple[Tensor, ...]]:
        """Returns `logistic - target`, times the gradient of the loss."""
        return ((inputs[0].sigmoid() - inputs[1]) * grad_output, None), ()

    @property
    def definition(self) -> NodeDefinition:
        """The loss of one example; the gradient is `logistic - target`."""

        def upward(incoming, target):  # type: ignore[no-untyped-def]
            total = _softplus_sum(incoming)
            for k in range(len(incoming)):
                total -= target[k] * incoming[k]
            return total

        def downward(incoming, target, state, error):  # type: ignore[no-untyped-def]
            return error * (_logistics(incoming) - target)

        return NodeDefinition(upward, downward)


@dataclass(frozen=True)
class HalfSquaredError(ScoreLoss):
    """**Half the sum** of squared differences between scores and target (of the same shape).

    The gradient is the difference itself. Mean over the examples; Keras's mean squared error also divides by
    the number of scores, and does not halve: see `mean_square`.
    """

    flops_per_score = 3.0  # a difference, a square and an addition

    def mean_square(self, mean_loss: float, scores: Shape) -> float:
        """The mean of all squared differences (Keras's), from the mean loss of the examples."""
        return 2.0 * mean_loss / math.prod(scores)

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The sum over these scores."""
        scores, targets = (one.flatten(0, -2).double() for one in inputs)
        return (scores - targets).square().sum(0, keepdim=True) / 2

    def backward(
        self,
        step: Step,
        inputs: tuple[Tensor, ...],
        parameters: tuple[Tensor, ...],
        output: Tensor,
        grad_output: Tensor,
    ) -> tuple[tuple[Tensor | None, ...], tuple[Tensor, ...]]:
        """Returns `scores - target`, times the gradient of the loss."""
        return ((inputs[0] - inputs[1]) * grad_output, None), ()

    @property
    def definition(self) -> NodeDefinition:
        """The loss of one example; the gradient is `scores - target`."""

        def upward(incoming, target):  # type: ignore[no-untyped-def]
            total = 0.0
            for k in range(len(incoming)):
                total += (incoming[k] - target[k]) ** 2
            return 0.5 * total

        def downward(incoming, target, state, error):  # type: ignore[no-untyped-def]
            return error * (incoming - target)

        return NodeDefinition(upward, downward)


def _softplus_sum(scores: Any) -> Any:
    """Sums `log(1 + exp(score))`, without overflow."""
    total = 0.0
    for score in scores:
        total += max(score, 0.0) + math.log1p(math.exp(-abs(score)))
    return total


def _logistics(scores: Any) -> Any:
    """Computes `1 / (1 + exp(-score))` of each score, without overflow."""
    found = 0.0 * scores
    for k in range(len(scores)):
        odds = math.exp(-abs(scores[k]))
        found[k] = (1.0 if scores[k] >= 0.0 else odds) / (1.0 + odds)
    return found


def _labelled(step: Step, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the score of each example's label is among these, and that score in float64; `[example]`."""
    places = labels[0] - step.windows[0][0]
    here = (places >= 0) & (places < len(scores))
    return here, scores.gather(0, places.clamp(0, len(scores) - 1)[None])[0].double()


def _one_hot(step: Step, scores: Tensor, labels: Tensor) -> Tensor:
    """1 at the score of each example's label, `[score, example]`."""
    numbers = step.torch.arange(*step.windows[0], device=labels.device)
    return (labels == numbers[:, None]).to(scores.dtype)


def _softplus_sums(step: Step, scores: Tensor) -> Tensor:
    """Sums `log(1 + exp(score))` for each example, in float64, `[1, example]`."""
    terms = step.torch.nn.functional.softplus(scores, 1.0, 40.0)  # above 40 a float64 ends
    return terms.sum(0, keepdim=True, dtype=step.torch.float64)
