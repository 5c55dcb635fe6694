"""Losses of logistic classifiers, one for each score: the class is a label, or each score has a target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from partita.layers.box import Shape
from partita.layers.contract import Gradients, Step, Summary, Tensor, Tensors
from partita.layers.layer import NodeDefinition
from partita.layers.losses import LabelLoss, ScoreLoss, labelled


@dataclass(frozen=True)
class OneVsRest(LabelLoss):
    """A logistic classifier for each class, which decides whether an example has it; the target is a label.

    The loss of an example is the **sum** of its classifiers' cross-entropies; mean over the examples.

    Source: DistBelief, section 5, the 21,000 outputs of the image model.
    """

    splits_scores = True
    distils = True

    def summary(self, shape: Shape) -> Summary:
        """The largest score, by which an example is counted as right."""
        return Summary((1,))

    def summarise(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The largest of these scores."""
        return inputs[0].amax(0, keepdim=True)

    def combine(self, step: Step, summaries: Tensor) -> Tensor:
        """The largest of all."""
        return summaries.amax(0)

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The sum over these classifiers."""
        here, score = labelled(step, *inputs)
        return _softplus_sums(step, inputs[0]) - step.torch.where(here, score, 0.0)

    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
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

    distils = True

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The sum over these scores."""
        scores, targets = (one.flatten(0, -2) for one in inputs)
        return _softplus_sums(step, scores) - (scores.double() * targets.double()).sum(0)

    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
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


def _softplus_sums(step: Step, scores: Tensor) -> Tensor:
    """Sums `log(1 + exp(score))` for each example, in float64, `[1, example]`."""
    terms = step.torch.nn.functional.softplus(scores, 1.0, 40.0)  # above 40 a float64 ends
    return terms.sum(0, keepdim=True, dtype=step.torch.float64)
