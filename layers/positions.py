"""Layers besides, for sequences: `PositionEmbedding`, and `PaddingMask`, which marks positions that count."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from partita.layers.box import Shape
from partita.layers.checks import check_whole
from partita.layers.connectivity import Connectivity, OneToOne
from partita.layers.contract import Step, Tensor
from partita.layers.initial import Initialiser, check_initialiser
from partita.layers.layer import Layer, NodeDefinition, Parameter


@dataclass(frozen=True)
class PositionEmbedding(Layer):
    """Adds learned numbers to a sequence (positions, features): each node has one of its own.

    Args:
        initialiser: of the numbers, see `Parameter`.
        trainable: whether they learn.
        name: the layer's name in the network.
    """

    _meant: ClassVar[Any] = {
        "sequence_length": "leave it out: it follows from what the layer is called on",
        "max_length": "leave it out: it follows from what the layer is called on",
    }

    slowdown = 10.0
    initialiser: Initialiser = field(default="glorot", kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        super().check()
        self._settle(initialiser=check_initialiser(self.initialiser))

    @property
    def connectivity(self) -> Connectivity:
        """Each node to itself."""
        return OneToOne()

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of the input."""
        return sources[0]

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """A number for each node."""
        return (Parameter("weight", shape, self.initialiser, shape[0], math.prod(shape[1:])),)

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The sum of both numbers."""
        return inputs[0] + parameters[0].unsqueeze(-1)

    @property
    def definition(self) -> NodeDefinition:
        """The sum of two scalars."""

        def upward(incoming, weight):  # type: ignore[no-untyped-def]
            return incoming[0] + weight

        def downward(incoming, weight, state, error):  # type: ignore[no-untyped-def]
            return 0 * incoming + error, error

        return NodeDefinition(upward, downward)


@dataclass(frozen=True)
class PaddingMask(Layer):
    """Marks the positions of numbers of classes that count: 1, and 0 where the number is that of padding.

    `MultiHeadAttention` and recurrent layers take the result as their mask.

    Args:
        padding_idx: the number that fills sequences up.
        name: the layer's name in the network.
    """

    integer_inputs = True
    padding_idx: int = 0
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        self._settle(padding_idx=check_whole(self.padding_idx, "padding_idx is", least=0))

    @property
    def connectivity(self) -> Connectivity:
        """Each node to itself."""
        return OneToOne()

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of the input."""
        return sources[0]

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """Returns whether each number is another one."""
        return (inputs[0] != self.padding_idx).float()

    @property
    def definition(self) -> NodeDefinition:
        """The comparison of one number."""
        padding_idx = self.padding_idx

        def upward(incoming):  # type: ignore[no-untyped-def]
            return 0.0 if incoming[0] == padding_idx else 1.0

        def downward(incoming, state, error):  # type: ignore[no-untyped-def]
            return (0.0 * incoming,)

        return NodeDefinition(upward, downward)
