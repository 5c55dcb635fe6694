"""Layers whose nodes take a weighted sum of their inputs, add a bias and apply an activation."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field

from partita.layers.activations import ACTIVATIONS, activated, check_activation
from partita.layers.box import Extent, Shape
from partita.layers.checks import check_flag, check_whole
from partita.layers.connectivity import Connectivity, Full, Padding, Patch
from partita.layers.contract import Step, Tensor
from partita.layers.initial import Initialiser, check_initialiser
from partita.layers.layer import Layer, NodeDefinition, Parameter
from partita.layers.patches import taps
from partita.layers.regularisers import Regulariser
from partita.layers.ties import ParameterOf


@dataclass(frozen=True)
class WeightedSum(Layer):
    """A node's activation is `activation(bias + sum of weight * incoming)`.

    No two nodes share a weight, except where a layer's docstring says otherwise: the weight has the shape of
    the grid plus one axis for the incoming edges; the bias that of the grid.
    """

    activation: str = field(default="linear", kw_only=True)
    use_bias: bool = field(default=True, kw_only=True)
    initialiser: Initialiser = field(default="glorot", kw_only=True)
    bias_initialiser: Initialiser = field(default="zeros", kw_only=True)
    regulariser: Regulariser | None = field(default=None, kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        Layer.check(self)
        check_activation(self.activation)
        check_flag(self.use_bias, "use_bias is")
        self._settle(initialiser=check_initialiser(self.initialiser))
        self._settle(bias_initialiser=check_initialiser(self.bias_initialiser))
        if not self.use_bias and self.bias_initialiser != "zeros":
            raise ValueError(
                "use_bias is False, so there is no bias to initialise; leave bias_initialiser out"
            )

    @property
    @abstractmethod
    def nodes(self) -> Shape:
        """The user's setting: the grid of a dense layer, the filters of a local one."""

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The grid that the connectivity makes."""
        return self.wirings(sources)[0].shape(sources[0], self.nodes)

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """The weight, and the bias if there is one."""
        fan_in = self.wirings(sources)[0].fan_in(sources[0])
        fan_out = max(1, math.prod(shape) * fan_in // math.prod(sources[0]))
        weight = Parameter("weight", (*shape, fan_in), self.initialiser, fan_in, fan_out)
        bias = Parameter("bias", shape, self.bias_initialiser, fan_in, fan_out)
        return (weight, bias) if self.use_bias else (weight,)

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """A multiplication and an addition for each edge, and the bias."""
        return 2.0 * self.wirings(sources)[0].fan_in(sources[0]) + self.use_bias

    def _finished(self, step: Step, sums: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """Adds the bias, and applies the activation."""
        biased = sums + parameters[1].unsqueeze(-1) if self.use_bias else sums
        return activated(step.torch, self.activation, biased)

    @property
    def definition(self) -> NodeDefinition | None:
        """The weighted sum in scalars."""
        value, slope = ACTIVATIONS[self.activation]

        def upward(incoming, weight, bias):  # type: ignore[no-untyped-def]
            total = bias
            for k in range(len(incoming)):
                total += weight[k] * incoming[k]
            return value(total)

        def downward(incoming, weight, bias, state, error):  # type: ignore[no-untyped-def]
            delta = error * slope(state)
            return delta * weight, delta * incoming, delta

        def upward_without_bias(incoming, weight):  # type: ignore[no-untyped-def]
            total = 0.0 * incoming[0]
            for k in range(len(incoming)):
                total += weight[k] * incoming[k]
            return value(total)

        def downward_without_bias(incoming, weight, state, error):  # type: ignore[no-untyped-def]
            delta = error * slope(state)
            return delta * weight, delta * incoming

        if self.use_bias:
            return NodeDefinition(upward, downward)
        return NodeDefinition(upward_without_bias, downward_without_bias)


@dataclass(frozen=True)
class Dense(WeightedSum):
    """Fully connected: every node reads every node of the input, which may have any shape.

    Args:
        units: number of nodes.
        activation: "linear", "relu", "sigmoid" or "tanh".
        use_bias: whether each node has a bias.
        initialiser, bias_initialiser: of the weight and of the bias, see `Parameter`.
        regulariser: of the weight, for example `L2(1e-4)`.
        trainable: whether weight and bias learn.
        weight: that of another layer, which this one uses as its own: see `Linear`.
        name: the layer's name in the network.
    """

    splits_sum = True
    rounds_products = True

    units: int
    weight: ParameterOf | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        super().check()
        self._settle(units=check_whole(self.units, "the number of nodes is"))
        check_weight(self.weight, self.regulariser)

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """A product of matrices."""
        (x,), (weight, *bias) = inputs, parameters
        matrices = weight.flatten(1), x.flatten(0, -2)
        addmm, mm = step.torch.addmm, step.torch.mm
        return self.finish(step, addmm(bias[0][:, None], *matrices) if bias else mm(*matrices))

    def partial(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The product with some of the inputs."""
        return step.torch.mm(parameters[0].flatten(1), inputs[0].flatten(0, -2))

    def finish(self, step: Step, sums: Tensor) -> Tensor:
        """Applies the activation function."""
        return activated(step.torch, self.activation, sums)

    @property
    def nodes(self) -> Shape:
        """A row of nodes."""
        return (self.units,)

    @property
    def connectivity(self) -> Connectivity:
        """Every node of the input."""
        return Full()


@dataclass(frozen=True)
class LocallyConnected2D(WeightedSum):
    """Filters on patches of a picture `[height, width, channels]`, weights **not** shared between places.

    Args:
        filters: how many nodes look at each patch.
        kernel_size: height and width of a patch.
        stride: from one patch to the next.
        padding: "valid", "same", or how many rows and columns of zeros: a number, or one for each axis, or
            ((top, bottom), (left, right)).
        activation, use_bias, initialiser, bias_initialiser, regulariser, trainable, name: as in
            `Dense`.

    Source: DistBelief, section 5, the locally connected image model.
    """

    by_rows = True

    filters: int
    kernel_size: Extent
    stride: Extent = field(default=1, kw_only=True)
    padding: Padding = field(default="valid", kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        super().check()
        patch = self.connectivity
        self._settle(
            filters=check_whole(self.filters, "the number of filters is"),
            kernel_size=patch.size,
            stride=patch.stride,
            padding=patch.padding,
        )

    @property
    def nodes(self) -> Shape:
        """The filters at each place."""
        return (self.filters,)

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """For each place a product of its weights and its patch."""
        patches = taps(step, inputs[0]).permute(0, 1, 4, 5, 2, 3).flatten(2, 4)
        return self._finished(step, parameters[0] @ patches, parameters)

    @property
    def connectivity(self) -> Patch:
        """A patch with all of its channels."""
        return Patch(self.kernel_size, stride=self.stride, padding=self.padding)

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """Height and width of the places, then the filters."""
        check_picture(sources[0])
        return super().shape(sources)


def check_weight(weight: object, regulariser: object) -> None:
    """Raises ValueError unless the weight is a layer's own (None) or refers to that of another layer."""
    if weight is None:
        return
    if not isinstance(weight, ParameterOf):
        raise ValueError(
            f"the weight is {weight!r}; give that of another layer, for example embedding.weight or "
            "dense.parameter('weight'), or initial values as initialiser=..."
        )
    if regulariser is not None:
        raise ValueError(f"the regulariser of {weight!r} is that of its own layer; give it there")


def check_picture(shape: Shape) -> None:
    """Raises ValueError where the shape is not that of a picture."""
    if len(shape) != 3:
        raise ValueError(
            f"the input has shape {shape}; a picture is (height, width, channels), for example (28, 28, 1)"
        )
