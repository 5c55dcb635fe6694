"""The part of a parameter that a machine owns: some rows of its layer, or some columns.

Plain arithmetic on the shape of the parameter, for allocation, initialisation and parameter shards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from partita.layers.box import Box, Shape
from partita.layers.layer import Parameter


@dataclass(frozen=True)
class Columns:
    """Positions `[start, stop)` along one axis of a parameter, other than the first."""

    axis: int
    start: int
    stop: int


@dataclass(frozen=True)
class ParameterSlice:
    """A box of a parameter; in the memory of its machine it is contiguous.

    Args:
        parameter: the whole parameter.
        box: rows of its layer, or a tile of a picture; shared weights belong to the first row.
        columns: positions along another axis; None for all.
    """

    parameter: Parameter
    box: Box
    columns: Columns | None = None

    @property
    def shape(self) -> Shape:
        """Shape in the memory of the machine: flat if rows have different numbers of edges."""
        numbers = sum(stop - start for start, stop in self.parameter.spans(self.box))
        if self.parameter.row_starts is not None:
            return (numbers,)
        tile = self.box.columns
        whole = (self.parameter.narrowed(tile) if tile else self.parameter).shape
        extents = [numbers // math.prod(whole[1:]), *whole[1:]]
        if self.columns is not None:
            extents[self.columns.axis] = self.columns.stop - self.columns.start
        return tuple(extents)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def part(self, rows: tuple[int, int]) -> ParameterSlice:
        """The part that belongs to rows in this range; shared weights stay whole."""
        if self.parameter.shared:
            return self
        (first, last), *columns = self.box
        start, stop = max(rows[0], first), min(rows[1], last)
        return replace(self, box=Box(((start, max(start, stop)), *columns)))

    def before(self, row: int) -> int:
        """Number of elements that belong to rows before this one."""
        return 0 if self.parameter.shared else self.part((self.box[0][0], row)).size

    @property
    def runs(self) -> tuple[int, int, int, int]:
        """Position in the flat parameter: start and stop, the length of each run, the distance between runs.

        Length and distance are 0 for a single run.
        """
        spans = self.parameter.spans(self.box) or ((0, 0),)
        (start, stop), last = spans[0], spans[-1][1]
        if len(spans) > 1:
            return start, last, stop - start, spans[1][0] - start
        if self.columns is None or self.size in (0, stop - start):
            return start, stop, 0, 0
        inner = math.prod(self.parameter.shape[self.columns.axis + 1 :])
        run = (self.columns.stop - self.columns.start) * inner
        stride = self.parameter.shape[self.columns.axis] * inner
        first = start + self.columns.start * inner
        return first, stop - stride + self.columns.stop * inner, run, stride
