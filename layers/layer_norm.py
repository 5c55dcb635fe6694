"""Normalisation of each example over the features of a place: the last axis of the grid."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from partita.layers.box import Box, Shape, Span
from partita.layers.checks import check_flag, check_number
from partita.layers.connectivity import Connectivity, Index, OneToOne
from partita.layers.contract import Step, Summary, Tensor
from partita.layers.layer import Layer, NodeDefinition, Parameter
from partita.layers.moments import N_MOMENTS, joined, moments


@dataclass(frozen=True)
class Features(OneToOne):
    """The wiring of a node to itself first, and then to all nodes of its place: those of the last axis."""

    ordered_gradients = False

    def sources(self, region: Box, source: Shape) -> tuple[Box, ...]:
        """The same places with all of their nodes."""
        return (Box((*region.bounds[:-1], (0, source[-1]))),) if region.size else ()

    def edges(self, rows: Span, shape: Shape, source: Shape) -> tuple[Index, Index]:
        """The node itself, then the nodes of its place."""
        _, own = super().edges(rows, shape, source)
        place = own[:, None] // source[-1] * source[-1] + np.arange(source[-1])
        table = np.concatenate([own[:, None], place], axis=1)
        return np.arange(len(own) + 1) * table.shape[1], table.reshape(-1)

    def fan_in(self, source: Shape) -> int:
        """The node, and those of its place."""
        return 1 + source[-1]


@dataclass(frozen=True)
class FeatureNorm(Layer):
    """A normalisation over the last axis, with a factor for each feature; see `LayerNorm` and `RMSNorm`."""

    _meant: ClassVar[Any] = {
        "axis": "it is over the last axis; for another, call Permute(...) before and after it",
        "dim": "it is over the last axis; for another, call Permute(...) before and after it",
        "normalized_shape": "leave it out: it is the last axis of what the layer is called on",
        "elementwise_affine": ("scale",),
    }

    slowdown = 10.0
    epsilon: float = field(default=1e-5, kw_only=True)
    scale: bool = field(default=True, kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        super().check()
        self._settle(epsilon=check_number(self.epsilon, "epsilon is", rule="; write a number above 0"))
        check_flag(self.scale, "scale is")

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

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """A factor for each feature, which all places share."""
        return (self._of_features("weight", "ones", shape),) if self.scale else ()

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """Two sums, a difference and a product."""
        return 6.0

    def _of_features(self, name: str, initialiser: str, shape: Shape) -> Parameter:
        return Parameter(name, shape[-1:], initialiser, shared=len(shape) > 1)

    def _scaled(self, step: Step, normal: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """Applies the parameters."""
        for parameter, apply in zip(parameters, (step.torch.mul, step.torch.add), strict=False):
            normal = apply(normal, parameter.unsqueeze(-1))
        return normal


@dataclass(frozen=True)
class LayerNorm(FeatureNorm):
    """Each feature as the number of standard deviations above the mean of its place's features.

    `(input - mean) / sqrt(variance + epsilon) * weight + bias`, over the last axis of the input (all of it,
    if it has only one), for each example.

    Source: Ba, Kiros and Hinton, *Layer normalization*, 2016, equation 4.

    Args:
        epsilon: added to the variance.
        scale: whether it has `weight` and `bias`, one number for each feature, 1 and 0 at first.
        trainable: whether its parameters learn.
        name: the layer's name in the network.
    """

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """A factor and a term for each feature."""
        factor = super().parameters(shape, sources)
        return (*factor, self._of_features("bias", "zeros", shape)) if factor else ()

    def summary(self, shape: Shape) -> Summary | None:
        """The moments, where the features are rows."""
        return Summary((N_MOMENTS,)) if len(shape) == 1 else None

    def summarise(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The moments of these rows."""
        return moments(step.torch, inputs[0], (0,))

    def combine(self, step: Step, summaries: Tensor) -> Tensor:
        """Joins the summaries of all rows."""
        return joined(step.torch, summaries)

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """Mean and variance over the axis before the examples."""
        (x,) = inputs
        if len(step.shape) == 1:
            count, mean, squares = step.summary
            return self._scaled(step, (x - mean) * (squares / count + self.epsilon).rsqrt(), parameters)
        centred = x - x.mean(-2, keepdim=True)  # what var_mean computes, as two means over strides
        variance = (centred * centred).mean(-2, keepdim=True)
        return self._scaled(step, centred * step.torch.rsqrt(variance + self.epsilon), parameters)

    @property
    def definition(self) -> NodeDefinition:
        """A node's own state after those of its place, in scalars."""
        epsilon = self.epsilon

        def normal(incoming: Any) -> tuple[Any, Any]:
            n, mean, variance = len(incoming) - 1, 0.0, 0.0
            for k in range(1, len(incoming)):
                mean += incoming[k] / n
            for k in range(1, len(incoming)):
                variance += (incoming[k] - mean) ** 2 / n
            return mean, math.sqrt(variance + epsilon)

        def errors_of(incoming: Any, error: Any) -> Any:
            (mean, deviation), n = normal(incoming), len(incoming) - 1
            own = (incoming[0] - mean) / deviation
            errors = 0.0 * incoming
            errors[0] = error / deviation
            for k in range(1, len(incoming)):
                errors[k] = -error / deviation / n * (1.0 + own * (incoming[k] - mean) / deviation)
            return errors

        def plain(incoming: Any) -> Any:
            mean, deviation = normal(incoming)
            return (incoming[0] - mean) / deviation

        def scaled(incoming, weight, bias):  # type: ignore[no-untyped-def]
            return plain(incoming) * weight + bias

        def plain_downward(incoming, state, error):  # type: ignore[no-untyped-def]
            return (errors_of(incoming, error),)

        def scaled_downward(incoming, weight, bias, state, error):  # type: ignore[no-untyped-def]
            return errors_of(incoming, error * weight), error * plain(incoming), error

        return (
            NodeDefinition(scaled, scaled_downward) if self.scale else NodeDefinition(plain, plain_downward)
        )


@dataclass(frozen=True)
class RMSNorm(FeatureNorm):
    """Each feature relative to the root of the mean square of its place's features.

    `input / sqrt(mean(input ** 2) + epsilon) * weight`, over the last axis of the input, for each example.

    Source: Zhang and Sennrich, *Root mean square layer normalization*, NeurIPS 2019, equation 4.

    Args:
        epsilon: added to the mean square.
        scale: whether it has `weight`, one number for each feature, 1 at first.
        trainable: whether its parameters learn.
        name: the layer's name in the network.
    """

    def summary(self, shape: Shape) -> Summary | None:
        """The sum of the squares, where the features are rows."""
        return Summary((1,)) if len(shape) == 1 else None

    def summarise(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The sum of squares of these rows."""
        return inputs[0].square().sum(0, keepdim=True)

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The mean square over the axis before the examples."""
        (x,) = inputs
        one_place = len(step.shape) == 1
        square = step.summary / step.shape[0] if one_place else (x * x).mean(-2, keepdim=True)
        return self._scaled(step, x * step.torch.rsqrt(square + self.epsilon), parameters)

    @property
    def definition(self) -> NodeDefinition:
        """A node's own state after those of its place, in scalars."""
        epsilon = self.epsilon

        def root(incoming: Any) -> Any:
            square = 0.0
            for k in range(1, len(incoming)):
                square += incoming[k] ** 2 / (len(incoming) - 1)
            return math.sqrt(square + epsilon)

        def errors_of(incoming: Any, error: Any) -> Any:
            size, n = root(incoming), len(incoming) - 1
            errors = 0.0 * incoming
            errors[0] = error / size
            for k in range(1, len(incoming)):
                errors[k] = -error * incoming[0] * incoming[k] / (n * size**3)
            return errors

        def plain(incoming: Any) -> Any:
            return incoming[0] / root(incoming)

        def scaled(incoming, weight):  # type: ignore[no-untyped-def]
            return plain(incoming) * weight

        def plain_downward(incoming, state, error):  # type: ignore[no-untyped-def]
            return (errors_of(incoming, error),)

        def scaled_downward(incoming, weight, state, error):  # type: ignore[no-untyped-def]
            return errors_of(incoming, error * weight), error * plain(incoming)

        return (
            NodeDefinition(scaled, scaled_downward) if self.scale else NodeDefinition(plain, plain_downward)
        )
