"""Losses: one node that listens to all scores and to a target, and whose state is an example's loss.

A loss is never cut: the machine that owns it receives the scores. The error that a loss sends down is that of
the *mean* loss over the examples of the batch, so that a rate means the same for every batch size.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field

from partita.layers.connectivity import Connectivity, Full
from partita.layers.layer import Layer, NodeDefinition
from partita.layers.region import Shape


@dataclass(frozen=True)
class Loss(Layer):
    """Called on scores and a target: `SoftmaxCrossEntropy()(scores, net.target("digit"))`."""

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
class SquaredError(Loss):
    """Half the sum of squared differences between scores and target (of the same shape)."""

    def target(self, scores: Shape) -> tuple[Shape, int | None]:
        """As many numbers as there are scores."""
        return scores, None

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
