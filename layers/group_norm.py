"""Normalisation of each example over groups of channels, at all places of a picture or a sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from partita.layers.box import Shape
from partita.layers.checks import check_flag, check_number, check_whole
from partita.layers.connectivity import Connectivity, OneToOne
from partita.layers.contract import Step, Summary, Tensor
from partita.layers.layer import Layer, NodeDefinition, Parameter
from partita.layers.moments import N_MOMENTS, joined, moments


@dataclass(frozen=True)
class GroupNorm(Layer):
    """Each node as the number of standard deviations above the mean of its group, for each example.

    A group is a share of the channels (the last axis) with all of their places:
    `(input - mean) / sqrt(variance + epsilon) * weight + bias`. Where the layer is cut by rows or tiles,
    machines exchange the moments of their places: three numbers for each group and example, and the gradients
    of them.

    Source: Wu and He, *Group normalization*, ECCV 2018, equations 1 to 3.

    Args:
        groups: number of groups; it divides the channels. With 1, all channels are one group.
        epsilon: added to the variance.
        scale: whether it has `weight` and `bias`, one number for each channel, 1 and 0 at first.
        trainable: whether they learn.
        name: the layer's name in the network.
    """

    slowdown = 10.0

    _meant: ClassVar[Any] = {
        "axis": "channels are the last axis; leave it out",
    }

    groups: int
    epsilon: float = field(default=1e-5, kw_only=True)
    scale: bool = field(default=True, kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        super().check()
        self._settle(
            groups=check_whole(self.groups, "the number of groups is"),
            epsilon=check_number(self.epsilon, "epsilon is", rule="; write a number above 0"),
        )
        check_flag(self.scale, "scale is")

    @property
    def connectivity(self) -> Connectivity:
        """The node itself; the rest of its group comes as a summary."""
        return OneToOne()

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of the input.

        Raises:
            ValueError: it has no places, or the groups do not divide its channels.
        """
        (shape,) = sources
        if len(shape) < 2:
            raise ValueError(
                f"the input has shape {shape}; it takes places with channels, as (height, width, channels); "
                "for a row of features, write LayerNorm()"
            )
        if shape[-1] % self.groups:
            raise ValueError(f"{self.groups} groups do not divide the {shape[-1]} channels of the input")
        return shape

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """A factor and a term for each channel, which all places share."""
        if not self.scale:
            return ()
        weight = Parameter("weight", shape[-1:], "ones", shared=True)
        return weight, Parameter("bias", shape[-1:], shared=True)

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """Two sums, a difference and a product."""
        return 6.0

    def summary(self, shape: Shape) -> Summary:
        """The moments of each group."""
        return Summary((N_MOMENTS, self.groups))

    def summarise(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """Returns the moments of each group in these rows."""
        x = self._grouped(inputs[0])
        return moments(step.torch, x, (*range(x.dim() - 3), x.dim() - 2))

    def combine(self, step: Step, summaries: Tensor) -> Tensor:
        """Joins the summaries of all rows."""
        return joined(step.torch, summaries)

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The differences from the means, over the deviations."""
        count, mean, squares = step.summary.unsqueeze(-2)
        normal = (self._grouped(inputs[0]) - mean) * step.torch.rsqrt(squares / count + self.epsilon)
        normal = normal.flatten(-3, -2)
        for parameter, apply in zip(parameters, (step.torch.mul, step.torch.add), strict=False):
            normal = apply(normal, parameter.unsqueeze(-1))
        return normal

    def _grouped(self, x: Tensor) -> Tensor:
        """The input as `[places ..., group, channel, example]`."""
        return x.unflatten(-2, (self.groups, -1))

    @property
    def definition(self) -> NodeDefinition | None:
        """None: a node is a function of its whole group, of which it has only a summary."""
        return None
