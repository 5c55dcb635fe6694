"""The part of a parameter that a machine owns.

Plain arithmetic on the shape of the parameter, for allocation, initialisation and parameter shards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from partita.layers.box import Box, Shape, Span
from partita.layers.layer import Parameter


@dataclass(frozen=True)
class ParameterSlice:
    """A box of a parameter; in the memory of its machine it is contiguous.

    Args:
        parameter: the whole parameter.
        box: rows of its layer; besides the rows, at most one other axis is cut. Shared weights are whole.
    """

    parameter: Parameter
    box: Box

    @property
    def shape(self) -> Shape:
        """Shape in the memory of the machine: flat if rows have different numbers of edges."""
        if self.parameter.shared:
            return self.parameter.shape
        if self.parameter.row_starts is not None:
            start, stop = self.parameter.span(self.box[0])
            return (stop - start,)
        return self._box.shape

    @property
    def size(self) -> int:
        """Number of elements in the slice."""
        return math.prod(self.shape)

    def part(self, rows: Span) -> ParameterSlice:
        """The part that belongs to rows in this range; shared weights stay whole."""
        if self.parameter.shared:
            return self
        (first, last), *others = self.box
        start, stop = max(rows[0], first), min(rows[1], last)
        return replace(self, box=Box(((start, max(start, stop)), *others)))

    def before(self, row: int) -> int:
        """Number of elements that belong to rows before this one."""
        return 0 if self.parameter.shared else self.part((self.box[0][0], row)).size

    @property
    def runs(self) -> tuple[int, int, int, int]:
        """Position in the flat parameter: start and stop, the length of each run, the distance between runs.

        Length and distance are 0 for a single run.
        """
        start, stop = (0, self.size) if self.parameter.shared else self.parameter.span(self.box[0])
        if self.size in (0, stop - start):
            return start, stop, 0, 0
        shape, box = self.parameter.shape, self._box
        axis = next(k for k in range(1, len(shape)) if box[k] != (0, shape[k]))
        left, right = (end * math.prod(shape[axis + 1 :]) for end in box[axis])
        stride = math.prod(shape[axis:])
        first, last = start + left, stop - stride + right
        return (first, last, 0, 0) if stop - start == stride else (first, last, right - left, stride)

    @property
    def _box(self) -> Box:
        """The box on all axes of the parameter."""
        return Box(self.box[: len(self.parameter.shape)]).over(self.parameter.shape)
