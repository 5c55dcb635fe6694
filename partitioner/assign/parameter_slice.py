"""What a machine has of a parameter: some rows of its layer, and of a layer cut another way some columns.

Plain arithmetic on the shape of the parameter: what the engine allocates, initialises and keeps on shards.
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
        parameter: whole.
        rows: of its layer, `[start, stop)`, or a tile of a picture; of shared weights all belongs to the
            first row.
        columns: along another axis; None for all.
    """

    parameter: Parameter
    box: Box
    columns: Columns | None = None

    @property
    def shape(self) -> Shape:
        """In the memory of the machine: flat where rows differ in their edges."""
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
        """How many numbers."""
        return math.prod(self.shape)

    def part(self, rows: tuple[int, int]) -> ParameterSlice:
        """What belongs to those of the rows that are in this range; of shared weights, all."""
        if self.parameter.shared:
            return self
        (first, last), *columns = self.box
        start, stop = max(rows[0], first), min(rows[1], last)
        return replace(self, box=Box(((start, max(start, stop)), *columns)))

    def before(self, row: int) -> int:
        """How many of the numbers belong to rows before this one."""
        return 0 if self.parameter.shared else self.part((self.box[0][0], row)).size

    @property
    def runs(self) -> tuple[int, int, int, int]:
        """Where it lies in the flat parameter: start, stop; of several runs the length of one, and how far it
        is to the next (else 0 and 0).
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
