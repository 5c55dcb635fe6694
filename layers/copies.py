"""Common base of layers whose nodes copy one node of the input: other shapes of the same numbers.

They have no parameters and no arithmetic; their cost is that of the copy, and of the messages of a cut.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field

import numpy as np

from partita.layers.box import Box, Shape, Span
from partita.layers.connectivity import Connectivity, Index
from partita.layers.layer import Layer, NodeDefinition


@dataclass(frozen=True)
class Copied(Connectivity):
    """A wiring by which each node is fed by at most one node of the input."""

    @abstractmethod
    def senders(self, shape: Shape, source: Shape) -> Index:
        """Flat position of each node's sender, or `PADDING`; an array of `shape`."""

    def edges(self, rows: Span, shape: Shape, source: Shape) -> tuple[Index, Index]:
        """One edge for each node."""
        table = self.senders(shape, source)[slice(*rows)].reshape(-1)
        return np.arange(len(table) + 1), table

    def fan_in(self, source: Shape) -> int:
        """One, for every node."""
        return 1


def positions(shape: Shape) -> Index:
    """The flat position of each node of a grid, as an array of its shape."""
    return np.arange(math.prod(shape)).reshape(shape)


def whole_rows(first: int, last: int, source: Shape) -> tuple[Box, ...]:
    """All rows of a grid from that of one flat position to that of another."""
    per_row = math.prod(source[1:])
    return (Box.of_rows(first // per_row, last // per_row + 1, shape=source),)


@dataclass(frozen=True)
class Copy(Layer):
    """A layer whose nodes copy a node of the input, or hold the padding."""

    slowdown = 2.0
    name: str | None = field(default=None, kw_only=True)

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """A number read and written."""
        return 1.0

    @property
    def definition(self) -> NodeDefinition:
        """The sender's state; of several inputs, all but one hold no sender, and their padding is zero."""

        def upward(incoming):  # type: ignore[no-untyped-def]
            total = incoming[0]
            for k in range(1, len(incoming)):
                total += incoming[k]
            return total

        def downward(incoming, state, error):  # type: ignore[no-untyped-def]
            return (0 * incoming + error,)

        return NodeDefinition(upward, downward)
