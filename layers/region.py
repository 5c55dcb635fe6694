"""A region: a box of a layer's grid of nodes, `[start, stop)` on each axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from partita.layers.rows import Run

Shape: TypeAlias = tuple[int, ...]
"""Nodes on each axis of a grid."""

Extent: TypeAlias = int | tuple[int, ...]
"""A length on every axis, or one for each."""

Margins: TypeAlias = tuple[tuple[int, int], ...]
"""For each axis, how much is added before it and behind it."""


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
        return cls.of_run((start, stop), shape=shape)

    @classmethod
    def of_run(cls, run: Run, *, shape: Shape) -> Region:
        """The nodes of a run, `(start, stop)` or `(start, stop, left, right)`; whole on the other axes."""
        given = zip(run[::2], run[1::2], strict=True)
        return cls((*given, *((0, extent) for extent in shape[len(run) // 2 :])))

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

    @property
    def box(self) -> Run:
        """`(start, stop, left, right)` of axes 0 and 1; `(0, 0, 0, 0)` when the region is empty."""
        return (*self.bounds[0], *self.bounds[1]) if self.size else (0, 0, 0, 0)

    def __str__(self) -> str:
        return "[" + ", ".join(f"{start}:{stop}" for start, stop in self.bounds) + "]"
