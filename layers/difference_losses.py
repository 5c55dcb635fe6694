"""Losses of the differences between scores and targets: half their squares, and Huber's."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from partita.layers.box import Shape
from partita.layers.checks import check_number
from partita.layers.contract import Gradients, Step, Tensor, Tensors
from partita.layers.layer import NodeDefinition
from partita.layers.losses import ScoreLoss


@dataclass(frozen=True)
class HalfSquaredError(ScoreLoss):
    """**Half the sum** of squared differences between scores and target (of the same shape).

    The gradient is the difference itself. Mean over the examples; Keras's mean squared error also divides by
    the number of scores, and does not halve: see `mean_square`.
    """

    flops_per_score = 3.0  # a difference, a square and an addition
    distils = True

    def mean_square(self, mean_loss: float, scores: Shape) -> float:
        """The mean of all squared differences (Keras's), from the mean loss of the examples."""
        return 2.0 * mean_loss / math.prod(scores)

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The sum over these scores."""
        scores, targets = (one.flatten(0, -2).double() for one in inputs)
        return (scores - targets).square().sum(0, keepdim=True) / 2

    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
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


@dataclass(frozen=True)
class Huber(ScoreLoss):
    """The **sum** over the scores of half the squared difference, where the difference is at most `delta`;
    and beyond, of `delta` times (the absolute difference less half of `delta`).

    Mean over the examples; Keras and PyTorch also divide by the number of scores.

    Args:
        delta: the difference, above 0, from which the loss grows by the difference and not by its square.
        loss_weight: factor of this loss in the sum that is minimised.
        name: the layer's name in the network.

    Raises:
        ValueError: `delta` is not above 0.

    Source: Huber 1964, "Robust estimation of a location parameter".
    """

    flops_per_score = 4.0  # a difference, a bound, a square and an addition
    delta: float = 1.0
    loss_weight: float = field(default=1.0, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Refuses a delta that is not above 0. Raises ValueError."""
        super().check()
        self._settle(delta=check_number(self.delta, "delta is"))

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The sum over these scores."""
        scores, targets = (one.flatten(0, -2).double() for one in inputs)
        distance = (scores - targets).abs()
        bounded = distance.clamp(max=self.delta)
        return (bounded * (distance - bounded / 2)).sum(0, keepdim=True)

    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
        """Returns `scores - target`, within `delta` of 0, times the gradient of the loss."""
        return ((inputs[0] - inputs[1]).clamp(-self.delta, self.delta) * grad_output, None), ()

    @property
    def definition(self) -> NodeDefinition:
        """The loss of one example; the gradient is `scores - target`, within `delta` of 0."""
        delta = self.delta

        def upward(incoming, target):  # type: ignore[no-untyped-def]
            total = 0.0
            for k in range(len(incoming)):
                distance = abs(incoming[k] - target[k])
                bounded = min(distance, delta)
                total += bounded * (distance - bounded / 2)
            return total

        def downward(incoming, target, state, error):  # type: ignore[no-untyped-def]
            errors = 0.0 * incoming
            for k in range(len(incoming)):
                errors[k] = error * min(max(incoming[k] - target[k], -delta), delta)
            return errors

        return NodeDefinition(upward, downward)
