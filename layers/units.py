"""Dense layers at each position that change what a row is: positions become units, and units positions.

A cut of `ToUnits` followed by one of `ToPositions` by its inputs divides the weights of both: machines
exchange one sum forward, and one gradient backward. `FeedForward` and `MultiHeadAttention` place them.

Source: Shoeybi and others, *Megatron-LM*, 2019, section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from partita.layers.box import Shape
from partita.layers.connectivity import Connectivity, Full
from partita.layers.contract import Step, Tensor
from partita.layers.initial import Initialiser
from partita.layers.layer import Layer, Parameter
from partita.layers.regularisers import Regulariser


@dataclass(frozen=True)
class AtPositions(Layer):
    """A dense layer at each position, see `ToUnits` and `ToPositions`.

    Args:
        units: number of features that it computes.
        use_bias, initialiser, regulariser, trainable, name: as in `Dense`.
    """

    units: int
    use_bias: bool = field(default=True, kw_only=True)
    initialiser: Initialiser = field(default="glorot", kw_only=True)
    regulariser: Regulariser | None = field(default=None, kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    @property
    def connectivity(self) -> Connectivity:
        """All nodes: a row of the input, or of the layer, has all positions."""
        return Full()

    @property
    def definition(self) -> None:
        """None: a node reads its position alone, of rows that have all; `Linear` has the definition."""
        return None

    def _parameters(self, width: int, *, shared: bool) -> tuple[Parameter, ...]:
        """The weight, with `width` columns, and the bias."""
        fans = width, self.units
        weight = Parameter("weight", (self.units, width), self.initialiser, *fans, shared=shared)
        return (weight, Parameter("bias", (self.units,), shared=shared)) if self.use_bias else (weight,)


@dataclass(frozen=True)
class ToUnits(AtPositions):
    """A dense layer at each position whose rows are units: (positions, features) gives (units, positions).

    A cut divides its weights. Each machine needs all of the sequence.
    """

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The units, and the positions of each."""
        return (self.units, sources[0][0])

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """The weights and the bias of each unit."""
        return self._parameters(sources[0][1], shared=False)

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """A multiplication and an addition for each feature."""
        return 2.0 * sources[0][1]

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """One product of matrices, whose columns are all positions of all examples."""
        sums = step.multiply(parameters[0], inputs[0]).transpose(0, 1)
        return sums + parameters[1][:, None, None] if self.use_bias else sums


@dataclass(frozen=True)
class ToPositions(AtPositions):
    """A dense layer at each position over rows that have all positions: (rows ..., positions) gives
    (positions, units).

    Rows of the input are units, or heads with columns. Where it is cut by its inputs, each machine has the
    weights of its own.
    """

    splits_sum = True

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The positions, and the units of each."""
        return (sources[0][-1], self.units)

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """The weight and the bias, which all positions share."""
        return self._parameters(math.prod(sources[0][:-1]), shared=True)

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """A multiplication and an addition for each node of a position."""
        return 2.0 * math.prod(sources[0][:-1])

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The sums over all inputs, and the bias."""
        sums = self.partial(step, inputs, parameters)
        return sums + parameters[1][:, None] if self.use_bias else sums

    def partial(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """One product of matrices, whose columns are the positions to be computed of all examples."""
        given = inputs[0][..., step.own, :].flatten(0, -3)
        sums = step.multiply(parameters[0], given.flatten(1))
        return sums.unflatten(1, given.shape[1:]).transpose(0, 1)

    def finish(self, step: Step, sums: Tensor) -> Tensor:
        """The sums as they are."""
        return sums
