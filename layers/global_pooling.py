"""Pools over all places of a picture or of a sequence: one number for each channel."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from partita.layers.box import Box, Shape, Span
from partita.layers.connectivity import Connectivity, Index
from partita.layers.contract import Step, Tensor
from partita.layers.copies import positions
from partita.layers.layer import Layer, NodeDefinition
from partita.layers.pooling import maximum


@dataclass(frozen=True)
class EveryPlace(Connectivity):
    """The wiring of a row of channels to all places of an input, each node to its own channel."""

    ordered_gradients = False

    def shape(self, source: Shape, nodes: Shape | None) -> Shape:
        """The channels of the input.

        Raises:
            ValueError: the input has channels alone.
        """
        if len(source) < 2:
            raise ValueError(
                f"the input has shape {source}; a pool needs places and a last axis of channels, for example "
                "(28, 28, 1)"
            )
        return source[-1:]

    def sources(self, region: Box, source: Shape) -> tuple[Box, ...]:
        """All places, with the same channels."""
        return (Box((*Box.whole(source[:-1]), region[0])),) if region.size else ()

    def edges(self, rows: Span, shape: Shape, source: Shape) -> tuple[Index, Index]:
        """All places of the channel."""
        table = positions(source).reshape(-1, source[-1]).T[slice(*rows)]
        return np.arange(len(table) + 1) * table.shape[1], table.reshape(-1)

    def fan_in(self, source: Shape) -> int:
        """One edge for each place."""
        return math.prod(source[:-1])


@dataclass(frozen=True)
class GlobalPool(Layer):
    """A number for each channel, of all its places; rows are channels, and each reads the whole input."""

    _meant: ClassVar[Any] = {
        "keepdims": "the result is (channels,); for places of one, call Reshape((1, 1, -1)) on it",
        "output_size": "it is over all places; leave it out",
    }

    slowdown = 6.0
    name: str | None = field(default=None, kw_only=True)

    @property
    def connectivity(self) -> EveryPlace:
        """All places of the node's channel."""
        return EveryPlace()

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The channels of the input."""
        return self.connectivity.shape(sources[0], None)

    def _places(self, step: Step, x: Tensor) -> Tensor:
        """The channels to be computed, `[place, channel, example]`."""
        return x.flatten(0, -3)[:, step.own]


@dataclass(frozen=True)
class GlobalAveragePool(GlobalPool):
    """The mean of each channel over all places: (height, width, channels) becomes (channels).

    Where it is cut by its inputs, each machine sums over its own rows of places, and they exchange the sums.

    Args:
        name: the layer's name in the network.
    """

    splits_sum = True

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The mean over the places."""
        return self._places(step, inputs[0]).mean(0)

    def partial(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The sum over some of the places, divided by the number of all."""
        return self._places(step, inputs[0]).sum(0) / math.prod(step.sources[0][:-1])

    def finish(self, step: Step, sums: Tensor) -> Tensor:
        """The sums as they are."""
        return sums

    @property
    def definition(self) -> NodeDefinition:
        """The mean, in scalars."""

        def upward(incoming):  # type: ignore[no-untyped-def]
            total = 0.0
            for k in range(len(incoming)):
                total += incoming[k]
            return total / len(incoming)

        def downward(incoming, state, error):  # type: ignore[no-untyped-def]
            return (0.0 * incoming + error / len(incoming),)

        return NodeDefinition(upward, downward)


@dataclass(frozen=True)
class GlobalMaxPool(GlobalPool):
    """The largest activation of each channel over all places; on a tie the gradient goes to the first.

    A machine needs all places of its channels. A `MaxPool2D` over the rows of each machine before it gives
    the same numbers and gradients, and then these machines send one number for each channel.

    Args:
        name: the layer's name in the network.
    """

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The maximum over the places, and its first place."""
        return self._places(step, inputs[0]).max(0).values

    @property
    def definition(self) -> NodeDefinition:
        """The maximum, in scalars."""
        return maximum()
