"""Ranges of a flat parameter: one run of numbers, or as many runs at equal distances as a matrix has rows.

A machine that has some columns of a matrix has a short run of each of its rows. Written down run by run that
would be thousands of ranges; as one slot it is five numbers. Plain data and arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partita.engine.parameters.vector import Vector


class Slot(NamedTuple):
    """Numbers of a parameter, in the C order of its whole array, where they lie in the order of a vector.

    Args:
        parameter: its name.
        start, stop: the flat range `[start, stop)` from the first number to the last.
        run, stride: of columns of a matrix, how many numbers follow one another, and how far it is from one
            run to the next, a row of the matrix; 0 where all numbers of the range belong to the slot.
    """

    parameter: str
    start: int
    stop: int
    run: int = 0
    stride: int = 0

    @property
    def n_runs(self) -> int:
        """How many runs."""
        return (self.stop - self.start - self.run) // self.stride + 1 if self.stride else 1

    @property
    def size(self) -> int:
        """How many numbers."""
        return self.n_runs * self.run if self.stride else self.stop - self.start

    @property
    def runs(self) -> npt.NDArray[np.int64]:
        """Where each run starts and stops, `[run, 2]`."""
        first = (self.start, self.start + self.run if self.stride else self.stop)
        found: npt.NDArray[np.int64] = np.arange(self.n_runs)[:, None] * self.stride + np.array(first)
        return found

    def fits(self, size: int) -> bool:
        """Whether it lies in a parameter of so many numbers, its runs in the rows of a matrix."""
        if not 0 <= self.start <= self.stop <= size:
            return False
        if not self.stride:
            return self.run == 0
        whole = (
            self.start + (self.n_runs - 1) * self.stride + self.run == self.stop and size % self.stride == 0
        )
        return self.run > 0 and self.start % self.stride + self.run <= self.stride and whole

    def of(self, flat: Vector) -> Vector:
        """A view of its numbers in the whole parameter, `[n]` or `[run, n]`."""
        if not self.stride:
            return flat[self.start : self.stop]
        column, row = self.start % self.stride, self.start // self.stride
        matrix = flat[row * self.stride : (row + self.n_runs) * self.stride].reshape(-1, self.stride)
        return matrix[:, column : column + self.run]

    def between(self, low: int, high: int) -> Iterator[Slot]:
        """The slots of the numbers `[low, high)` of its vector: whole runs, and parts before and after."""
        if not self.stride:
            yield Slot(self.parameter, self.start + low, self.start + high)
            return
        while low < high:
            row, column = divmod(low, self.run)
            begin = self.start + row * self.stride + column
            whole = (high - low) // self.run if column == 0 else 0
            if whole > 1:
                stop = begin + (whole - 1) * self.stride + self.run
                yield Slot(self.parameter, begin, stop, self.run, self.stride)
                low += whole * self.run
            else:
                n = min(self.run - column, high - low)
                yield Slot(self.parameter, begin, begin + n)
                low += n


class Shared(NamedTuple):
    """Numbers that two slots have in common: where they begin in the vector of each, and how many."""

    here: int
    there: int
    size: int


def common(one: Slot, other: Slot) -> Iterator[Shared]:
    """What two slots have in common, run by run."""
    if one.parameter != other.parameter or one.start >= other.stop or other.start >= one.stop:
        return
    ours, theirs = one.runs.tolist(), other.runs.tolist()
    n = m = here = there = 0  # which runs, and where they begin in the vectors
    while n < len(ours) and m < len(theirs):
        (a, b), (c, d) = ours[n], theirs[m]
        start, stop = max(a, c), min(b, d)
        if start < stop:
            yield Shared(here + start - a, there + start - c, stop - start)
        if b <= d:
            n, here = n + 1, here + b - a
        if d <= b:
            m, there = m + 1, there + d - c
