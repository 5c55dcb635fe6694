"""The way back through a dense layer: the same weight, from its units to its inputs; and biases alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from partita.layers.box import Shape
from partita.layers.checks import check_flag, check_shape
from partita.layers.connectivity import Connectivity, Full, OneToOne
from partita.layers.contract import Gradients, Step, Tensor, Tensors
from partita.layers.initial import Initialiser, check_initialiser
from partita.layers.layer import Layer, NodeDefinition, Parameter
from partita.layers.ties import ParameterOf
from partita.layers.weighted_sum import check_weight


@dataclass(frozen=True)
class DenseTransposed(Layer):
    """The products of a dense layer's weight, transposed: `weight.T @ x`, without a bias of its own.

    Over the units of `Dense`, whose weight it uses, it has a node for each input of that layer: the downward
    pass of a Boltzmann machine, or the decoder of an autoencoder. Where the dense layer is cut by its rows,
    this one is best cut by its inputs, along the same machines: each has its rows of the weight already, and
    the machines exchange sums alone. Any other cut sends the weight to the machines that need it.

    Args:
        units: the shape of its grid, for example that of the input of the dense layer.
        weight: that of a dense layer, `dense.parameter("weight")`, `[inputs of this one, nodes of this one]`;
            its own if not given.
        initialiser: of a weight of its own.
        trainable: whether a weight of its own learns.
        name: the layer's name in the network.
    """

    splits_sum = True
    rounds_products = True

    units: int | Sequence[int]
    weight: ParameterOf | None = field(default=None, kw_only=True)
    initialiser: Initialiser = field(default="glorot", kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        super().check()
        check_weight(self.weight, None)
        self._settle(initialiser=check_initialiser(self.initialiser))
        self._settle(units=check_shape(self.units, "the shape of the nodes is"))

    @property
    def connectivity(self) -> Connectivity:
        """Every node of the input."""
        return Full()

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape that was given."""
        return self._nodes

    @property
    def _nodes(self) -> Shape:
        assert isinstance(self.units, tuple), "settled by check"
        return self.units

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """The weight, which all nodes share, because its rows are those of the input."""
        fans = size = math.prod(sources[0]), math.prod(shape)
        return (Parameter("weight", size, self.initialiser, *fans, shared=True, by_inputs=True),)

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """A multiplication and an addition for each input."""
        return 2.0 * math.prod(sources[0])

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The product with all inputs."""
        return self.partial(step, inputs, parameters)

    def partial(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The product with some of the inputs, whose rows of the weight these are."""
        (x,), (weight,) = inputs, parameters
        first, stop = step.rows
        row = math.prod(step.shape[1:])
        columns = weight.flatten(1)[:, first * row : stop * row]
        return step.torch.mm(columns.t(), x.flatten(0, -2)).unflatten(0, (stop - first, *step.shape[1:]))

    def finish(self, step: Step, sums: Tensor) -> Tensor:
        """Returns the sums as they are: there is no activation function."""
        return sums

    @property
    def definition(self) -> None:
        """None: a node's weights lie in a column, and definitions know those of a node and of all."""
        return


@dataclass(frozen=True)
class Bias(Layer):
    """Adds a number of its own to each node.

    Args:
        initialiser: of the biases, see `Parameter`.
        trainable: whether they learn.
        bias: that of another layer of the same shape, which this one uses as its own.
        name: the layer's name in the network.
    """

    initialiser: Initialiser = field(default="zeros", kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    bias: ParameterOf | None = field(default=None, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        super().check()
        check_flag(self.trainable, "trainable is")
        self._settle(initialiser=check_initialiser(self.initialiser))

    @property
    def connectivity(self) -> Connectivity:
        """Each node to itself."""
        return OneToOne()

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of the input."""
        return sources[0]

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """A bias for each node."""
        return (Parameter("bias", shape, self.initialiser),)

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The input and the bias."""
        return inputs[0] + parameters[0].unsqueeze(-1)

    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
        """The gradient itself, and its sum over the examples."""
        return (grad_output,), (grad_output.sum(-1),)

    @property
    def definition(self) -> NodeDefinition:
        """The sum of the incoming activation and the bias."""

        def upward(incoming, bias):  # type: ignore[no-untyped-def]
            return incoming[0] + bias

        def downward(incoming, bias, state, error):  # type: ignore[no-untyped-def]
            return 0 * incoming + error, error

        return NodeDefinition(upward, downward)
