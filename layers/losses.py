"""Losses: one node that listens to all scores and to a target, and whose state is an example's loss.

A loss is a single node. Where its mathematics allows, every machine that owns scores computes it from those
and from a summary of the others' scores; else one machine receives all scores. The error that a loss sends
down is that of the *mean* loss over the examples of the batch, so that a rate means the same for every batch
size.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

from partita.layers.box import Shape
from partita.layers.connectivity import Connectivity, Full
from partita.layers.layer import Layer, NodeDefinition


@dataclass(frozen=True)
class Loss(Layer):
    """Called on scores and a target: `SoftmaxCrossEntropy()(scores, net.target("digit"))`."""

    slowdown = 12.0
    name: str | None = field(default=None, kw_only=True)

    @property
    def connectivity(self) -> Connectivity:
        """All scores."""
        return Full()

    @property
    def cuttable(self) -> bool:
        """No: it is a single node."""
        return False

    @property
    def splits_scores(self) -> bool:
        """Whether machines may each judge their own scores; their losses of an example then add up."""
        return False

    @property
    def summary_rows(self) -> int:
        """How many numbers for each example such machines must tell one another of their own scores."""
        return 0

    @property
    def several_inputs(self) -> bool:
        """Scores and target."""
        return True

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """One node."""
        return (1,)

    @abstractmethod
    def target(self, scores: Shape) -> tuple[Shape, int | None]:
        """The shape of the target for scores of this shape, and the number of classes where it is a label.

        Raises:
            ValueError: it cannot judge scores of this shape.
        """


@dataclass(frozen=True)
class SoftmaxCrossEntropy(Loss):
    """The negative log of the softmax probability of the right class; the target is its label, from 0."""

    @property
    def splits_scores(self) -> bool:
        """Yes."""
        return True

    @property
    def summary_rows(self) -> int:
        """Two: the largest score, and the sum of exponentials relative to it."""
        return 2

    def target(self, scores: Shape) -> tuple[Shape, int | None]:
        """A label for each example.

        Raises:
            ValueError: the scores are not a row of two or more.
        """
        return _label(scores)

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """An exponential and a few operations for each score."""
        return 8.0 * math.prod(sources[0])

    @property
    def definition(self) -> NodeDefinition:
        """The loss of one example with a label; the errors are `softmax - one hot`."""

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
class OneVsRest(Loss):
    """A logistic classifier for each class, told whether the example is of it; the target is a label, from 0.

    Source: DistBelief, section 5, the 21,000 outputs of the image model.
    """

    @property
    def splits_scores(self) -> bool:
        """Yes."""
        return True

    @property
    def summary_rows(self) -> int:
        """One: the largest score, by which an example is counted as right."""
        return 1

    def target(self, scores: Shape) -> tuple[Shape, int | None]:
        """A label for each example.

        Raises:
            ValueError: the scores are not a row of two or more.
        """
        return _label(scores)

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """An exponential and a few operations for each score."""
        return 8.0 * math.prod(sources[0])

    @property
    def definition(self) -> NodeDefinition:
        """The sum of all classifiers' losses of one example; the errors are `logistic - one hot`."""

        def upward(incoming, label):  # type: ignore[no-untyped-def]
            return _softplus_sum(incoming) - incoming[label]

        def downward(incoming, label, state, error):  # type: ignore[no-untyped-def]
            errors = error * _logistics(incoming)
            errors[label] -= error
            return errors

        return NodeDefinition(upward, downward)


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """The sum over the scores of the cross-entropy of `logistic(score)` with a target from 0 to 1.

    The target has the shape of the scores, so that an example may be of several classes, or of none.
    """

    @property
    def splits_scores(self) -> bool:
        """Yes."""
        return True

    def target(self, scores: Shape) -> tuple[Shape, int | None]:
        """As many numbers as there are scores."""
        return scores, None

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """An exponential and a few operations for each score."""
        return 8.0 * math.prod(sources[0])

    @property
    def definition(self) -> NodeDefinition:
        """The loss of one example; the errors are `logistic - target`."""

        def upward(incoming, target):  # type: ignore[no-untyped-def]
            total = _softplus_sum(incoming)
            for k in range(len(incoming)):
                total -= target[k] * incoming[k]
            return total

        def downward(incoming, target, state, error):  # type: ignore[no-untyped-def]
            return error * (_logistics(incoming) - target)

        return NodeDefinition(upward, downward)


@dataclass(frozen=True)
class HalfSquaredError(Loss):
    """Half the sum of squared differences between scores and target (of the same shape)."""

    @property
    def splits_scores(self) -> bool:
        """Yes."""
        return True

    def target(self, scores: Shape) -> tuple[Shape, int | None]:
        """As many numbers as there are scores."""
        return scores, None

    def mean_square(self, mean_loss: float, scores: Shape) -> float:
        """The mean of all squared differences, given the mean loss of the examples."""
        return 2.0 * mean_loss / math.prod(scores)

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """A difference, a square and an addition for each score."""
        return 3.0 * math.prod(sources[0])

    @property
    def definition(self) -> NodeDefinition:
        """The loss of one example; the errors are `scores - target`."""

        def upward(incoming, target):  # type: ignore[no-untyped-def]
            total = 0.0
            for k in range(len(incoming)):
                total += (incoming[k] - target[k]) ** 2
            return 0.5 * total

        def downward(incoming, target, state, error):  # type: ignore[no-untyped-def]
            return error * (incoming - target)

        return NodeDefinition(upward, downward)


def _label(scores: Shape) -> tuple[Shape, int]:
    """The shape of a target that is a label, and how many there are."""
    if len(scores) != 1 or scores[0] < 2:
        raise ValueError(
            f"the scores have shape {scores}; give it one score for each class, for example Dense(10)"
        )
    return (1,), scores[0]


def _softplus_sum(scores: Any) -> Any:
    """The sum of `log(1 + exp(score))`, without overflow."""
    total = 0.0
    for score in scores:
        total += max(score, 0.0) + math.log1p(math.exp(-abs(score)))
    return total


def _logistics(scores: Any) -> Any:
    """`1 / (1 + exp(-score))` of each score, without overflow."""
    found = 0.0 * scores
    for k in range(len(scores)):
        odds = math.exp(-abs(scores[k]))
        found[k] = (1.0 if scores[k] >= 0.0 else odds) / (1.0 + odds)
    return found
