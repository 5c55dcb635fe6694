"""Linear: a dense layer along one axis of its input, with the same weights at every place of the others."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from partita.layers.activations import activated
from partita.layers.box import Box, Shape, Span
from partita.layers.checks import check_whole
from partita.layers.connectivity import Index, OneToOne
from partita.layers.contract import Step, Tensor
from partita.layers.layer import NodeDefinition, Parameter
from partita.layers.ties import ParameterOf
from partita.layers.weighted_sum import WeightedSum, check_weight


@dataclass(frozen=True)
class Along(OneToOne):
    """The wiring of a node to the nodes of the input that lie in one line with it, along `axis`.

    The layer may have another number of nodes on this axis; on the others its places are those of the input.
    """

    axis: int = -1

    ordered_gradients = False

    def shape(self, source: Shape, nodes: Shape | None) -> Shape:
        """The shape of the input, with so many nodes on the axis."""
        found = list(source)
        found[self.axis] = nodes[0] if nodes else source[self.axis]
        return tuple(found)

    def sources(self, region: Box, source: Shape) -> tuple[Box, ...]:
        """The same places, with all nodes of the axis."""
        found = list(region)
        found[self.axis] = (0, source[self.axis])
        return (Box(found),) if region.size else ()

    def edges(self, rows: Span, shape: Shape, source: Shape) -> tuple[Index, Index]:
        """All nodes of the line, for each node."""
        lines = np.moveaxis(np.arange(math.prod(source)).reshape(source), self.axis, -1)
        at = self.axis % len(source)
        table = np.broadcast_to(np.expand_dims(lines, at), (*shape, source[at]))[slice(*rows)]
        nodes = (rows[1] - rows[0]) * math.prod(shape[1:])
        return np.arange(nodes + 1) * source[at], table.reshape(-1)

    def fan_in(self, source: Shape) -> int:
        """Nodes of the axis."""
        return source[self.axis]


@dataclass(frozen=True)
class Linear(WeightedSum):
    """A dense layer along one axis: `weight @ x + bias` at every place of the other axes, with equal weights.

    Over (positions, features) it gives (positions, units), as PyTorch's `nn.Linear` and Keras's `Dense` do on
    a sequence. The weight is `[units, features]`, the bias `[units]`.

    The axis decides what a cut divides. Along the last axis rows are positions: each machine computes some of
    them, needs the same rows of its input, and all share the weights. Along axis 0 rows are units: over
    (features, positions) each machine has the weights of its own units, and needs all of its input; where the
    layer is cut by its inputs, those of its own features. `Permute` leads from one to the other. An input of
    one axis gives the weights of `Dense`.

    With `weight=embedding.weight` the layer has no weight of its own: over (positions, units), unit c of
    `Linear(classes)` has row c of the table of `Embedding(classes, units)` as its weights. Nothing is
    transposed: both arrays are `[classes, units]`, as in PyTorch's modules.

    Args:
        units: number of nodes in place of the features.
        axis: -1, the last one, or 0.
        weight: that of another layer, `[units, features]`, which this one uses as its own. The other layer
            decides its initial values and regulariser, and whether it learns.
        activation, use_bias, initialiser, bias_initialiser, regulariser, trainable, name: as in
            `Dense`.
    """

    units: int
    axis: int = field(default=-1, kw_only=True)
    weight: ParameterOf | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        super().check()
        self._settle(units=check_whole(self.units, "the number of units is"))
        check_weight(self.weight, self.regulariser)
        if type(self.axis) is not int or self.axis not in (-1, 0):
            raise ValueError(f"the axis is {self.axis!r}; write -1 (the last axis) or 0 (the rows)")
        self._settle(splits_sum=self.axis == 0)

    @property
    def nodes(self) -> Shape:
        """The units of a place."""
        return (self.units,)

    @property
    def connectivity(self) -> Along:
        """The line of the node along the axis."""
        return Along(self.axis)

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """A weight for each unit and feature, a bias for each unit; shared unless rows are units."""
        features, shared = sources[0][self.axis], self._rows_share(shape)
        size = (self.units, features)
        weight = Parameter("weight", size, self.initialiser, features, self.units, shared=shared)
        fans = features, self.units
        bias = Parameter("bias", size[:1], self.bias_initialiser, *fans, shared=shared)
        return (weight, bias) if self.use_bias else (weight,)

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """One product of matrices, whose columns are all places of all examples."""
        weight, at = parameters[0], self.axis % len(step.shape)
        places = len(step.shape) - at - 1
        bias = tuple(p.reshape(-1, *(1,) * places) for p in parameters[1:])
        return self._finished(step, self.partial(step, inputs, parameters), (weight, *bias))

    def partial(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The product with some of the inputs; with some rows of them along axis 0."""
        (x,), by_place = inputs, self.axis == -1
        found = step.multiply(parameters[0], x if by_place else x.flatten(1))
        return found if by_place else found.unflatten(1, x.shape[1:])

    def finish(self, step: Step, sums: Tensor) -> Tensor:
        """Applies the activation function."""
        return activated(step.torch, self.activation, sums)

    @property
    def definition(self) -> NodeDefinition | None:
        """The weighted sum in scalars. None along axis 0, where the nodes of a row share what other rows do
        not have: node definitions know parameters of one node and of all.
        """
        return super().definition if self.axis == -1 else None

    def _rows_share(self, shape: Shape) -> bool:
        return self.axis == -1 and len(shape) > 1
