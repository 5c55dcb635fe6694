"""Softmax as a layer: the shares of a place's features, which add up to 1."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from partita.layers.box import Shape
from partita.layers.connectivity import Connectivity, OneToOne
from partita.layers.contract import Step, Summary, Tensor
from partita.layers.layer import Layer, NodeDefinition
from partita.layers.layer_norm import Features


@dataclass(frozen=True)
class Softmax(Layer):
    """`exp(input) / sum(exp(inputs of the place))`, over the last axis of the input, for each example.

    `SoftmaxCrossEntropy` takes scores: no softmax comes before it.

    Args:
        name: the layer's name in the network.
    """

    _meant: ClassVar[Any] = {
        "axis": "it is over the last axis; for another, call Permute(...) before and after it",
        "dim": "it is over the last axis; for another, call Permute(...) before and after it",
    }

    slowdown = 10.0
    name: str | None = field(default=None, kw_only=True)

    @property
    def connectivity(self) -> Connectivity:
        """The node itself, and the nodes of its place; see `wirings`."""
        return Features()

    def wirings(self, sources: tuple[Shape, ...]) -> tuple[Connectivity, ...]:
        """The node itself alone, where the input has one axis: the others come as a summary."""
        return (OneToOne() if len(sources[0]) == 1 else self.connectivity,)

    def described_wirings(self, sources: tuple[Shape, ...]) -> tuple[Connectivity, ...]:
        """The node itself, and the nodes of its place."""
        return (self.connectivity,)

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of the input."""
        return sources[0]

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """A function, a sum and a division."""
        return 4.0

    def summary(self, shape: Shape) -> Summary | None:
        """The largest input, and the sum of exponentials relative to it, where the features are rows."""
        return Summary((2,)) if len(shape) == 1 else None

    def summarise(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """Returns the largest input of these rows, and the sum of exponentials relative to it."""
        largest = inputs[0].amax(0)
        return step.torch.stack((largest, (inputs[0] - largest).exp().sum(0)))

    def combine(self, step: Step, summaries: Tensor) -> Tensor:
        """Joins the summaries of all rows."""
        largest, totals = summaries.unbind(1)
        most = largest.amax(0)
        return step.torch.stack((most, (totals * (largest - most).exp()).sum(0)))

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The softmax over the axis before the examples."""
        if len(step.shape) > 1:
            return inputs[0].softmax(-2)
        largest, total = step.summary
        return (inputs[0] - largest).exp() / total

    @property
    def definition(self) -> NodeDefinition:
        """A node's own state after those of its place, in scalars."""

        def upward(incoming):  # type: ignore[no-untyped-def]
            total = 0.0
            for k in range(1, len(incoming)):
                total += math.exp(incoming[k] - incoming[0])
            return 1.0 / total

        def downward(incoming, state, error):  # type: ignore[no-untyped-def]
            errors = 0.0 * incoming
            errors[0] = error * state
            for k in range(1, len(incoming)):
                errors[k] = -error * state * state * math.exp(incoming[k] - incoming[0])
            return (errors,)

        return NodeDefinition(upward, downward)
