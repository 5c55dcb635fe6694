"""A region: a box of a layer's grid of nodes, `[start, stop)` on each axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

Shape: TypeAlias = tuple[int, ...]
"""Nodes on each axis of a grid."""

Extent: TypeAlias = int | tuple[int, ...]
"""A length on every axis, or one for each."""


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """A box of nodes. `bounds` holds `(start, stop)` for each axis of the layer's grid."""

    bounds: tuple[tuple[int, int], ...]

    @classmethod
    def whole(cls, shape: Shape) -> Region:
        """Every node of a grid of this shape."""
        return cls(tuple((0, extent) for extent in shape))

    @classmethod
    def of_rows(cls, start: int, stop: int, *, shape: Shape) -> Region:
        """The rows `[start, stop)` of axis 0, whole on every other axis."""
        return cls(((start, stop), *((0, extent) for extent in shape[1:])))

    @property
    def shape(self) -> Shape:
        """Nodes on each axis; 0 where the region is empty."""
        return tuple(max(stop - start, 0) for start, stop in self.bounds)

    @property
    def size(self) -> int:
        """How many nodes the region has."""
        return math.prod(self.shape)

    @property
    def rows(self) -> tuple[int, int]:
        """The run of axis 0; `(0, 0)` when the region is empty."""
        return self.bounds[0] if self.size else (0, 0)

    def __str__(self) -> str:
        return "[" + ", ".join(f"{start}:{stop}" for start, stop in self.bounds) + "]"
