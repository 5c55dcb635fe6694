"""Slots: ranges of a flat parameter, contiguous or with a stride.

A machine that has some columns of a matrix has a short run of each of its rows: thousands of ranges, but one
slot of five numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partita.engine.parameters.vector import Vector


class Slot(NamedTuple):
    """Numbers of a parameter, in the C order of its whole array: the flat range `[start, stop)`.

    For columns of a matrix, `run` is the length of a contiguous run, and `stride` the distance between the
    starts of two, which is the length of a row; both are 0 where the range is contiguous.
    """

    parameter: str
    start: int
    stop: int
    run: int = 0
    stride: int = 0

    @property
    def n_runs(self) -> int:
        """Number of contiguous runs."""
        return (self.stop - self.start - self.run) // self.stride + 1 if self.stride else 1

    @property
    def size(self) -> int:
        """Number of values in the slot."""
        return self.n_runs * self.run if self.stride else self.stop - self.start

    @property
    def runs(self) -> npt.NDArray[np.int64]:
        """Starts and stops of the runs, `[run, 2]`."""
        first = (self.start, self.start + self.run if self.stride else self.stop)
        found: npt.NDArray[np.int64] = np.arange(self.n_runs)[:, None] * self.stride + np.array(first)
        return found

    def fits(self, size: int) -> bool:
        """Returns whether the slot lies in a parameter of this size, its runs in the rows of a matrix."""
        if not 0 <= self.start <= self.stop <= size:
            return False
        if not self.stride:
            return self.run == 0
        ends_in_a_run = self.start + (self.n_runs - 1) * self.stride + self.run == self.stop
        is_in_rows = size % self.stride == 0 and self.start % self.stride + self.run <= self.stride
        return self.run > 0 and is_in_rows and ends_in_a_run

    def of(self, flat: Vector) -> Vector:
        """Returns a view of the slot in the whole parameter, `[n]` or `[run, n]`."""
        if not self.stride:
            return flat[self.start : self.stop]
        column, row = self.start % self.stride, self.start // self.stride
        matrix = flat[row * self.stride : (row + self.n_runs) * self.stride].reshape(-1, self.stride)
        return matrix[:, column : column + self.run]

    def between(self, low: int, high: int) -> Iterator[Slot]:
        """Yields the slots of the numbers `[low, high)` of this one: whole runs, and parts at both ends."""
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


def split(slots: Iterable[Slot], vector: Vector) -> Iterator[tuple[Slot, Vector]]:
    """Yields each slot with its view of the vector that all of them make."""
    position = 0
    for slot in slots:
        yield slot, vector[position : position + slot.size]
        position += slot.size
    assert position == vector.size, f"slots of {position} numbers for a vector of {vector.size}"


def within(slots: Iterable[Slot], low: int, high: int) -> Iterator[Slot]:
    """Yields the slots of the range `[low, high)` of the vector that all of them make."""
    position = 0
    for slot in slots:
        start, stop = max(position, low), min(position + slot.size, high)
        if start < stop:
            yield from slot.between(start - position, stop - position)
        position += slot.size


def learning(slots: Iterable[Slot], frozen: Collection[str]) -> tuple[tuple[int, int], ...]:
    """Returns the ranges of the vector that slots make which are of other parameters than the `frozen`."""
    found: list[tuple[int, int]] = []
    position = 0
    for slot in slots:
        start, position = position, position + slot.size
        if slot.parameter in frozen or start == position:
            continue
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, position))
    return tuple(found)


def intersections(ranges: Iterable[tuple[int, int]], start: int, stop: int) -> Iterator[slice]:
    """Yields the parts of ascending ranges that lie in `[start, stop)`."""
    for low, high in ranges:
        if max(low, start) < min(high, stop):
            yield slice(max(low, start), min(high, stop))


class Table(NamedTuple):
    """Rows of so many numbers each, in the range `[start, stop)` of a vector: gradients are of a few rows."""

    start: int
    stop: int
    width: int

    @property
    def n_rows(self) -> int:
        """Rows of the table, or of this part of it."""
        return (self.stop - self.start) // self.width

    def between(self, start: int, stop: int) -> tuple[int, int]:
        """Returns the rows `[first, stop)` in a range of the vector, which cuts none."""
        low, high = max(start, self.start), min(stop, self.stop)
        return (low - self.start) // self.width, (max(low, high) - self.start) // self.width


def tables_in(slots: Iterable[Slot], widths: Mapping[str, int]) -> tuple[Table, ...]:
    """Returns the tables in the vector that slots make, of parameters with such rows."""
    found, position = [], 0
    for slot in slots:
        if slot.size and slot.parameter in widths:
            found.append(Table(position, position + slot.size, widths[slot.parameter]))
        position += slot.size
    return tuple(found)


def outside(tables: Iterable[Table], start: int, stop: int) -> Iterator[slice]:
    """Yields the parts of `[start, stop)` between tables, which are ascending."""
    for table in tables:
        if start < min(table.start, stop):
            yield slice(start, min(table.start, stop))
        start = max(start, table.stop)
    if start < stop:
        yield slice(start, stop)


def clipped(tables: Sequence[Table], start: int, stop: int) -> tuple[Table, ...]:
    """Returns the parts of tables in `[start, stop)`."""
    parts = (table._replace(start=max(table.start, start), stop=min(table.stop, stop)) for table in tables)
    return tuple(part for part in parts if part.start < part.stop)


class CommonRun(NamedTuple):
    """Numbers that two slots have in common: their positions in both, and how many."""

    here: int
    there: int
    size: int


def common(one: Slot, other: Slot) -> Iterator[CommonRun]:
    """Yields the intersection of two slots, run by run."""
    if one.parameter != other.parameter or one.start >= other.stop or other.start >= one.stop:
        return
    ours, theirs = one.runs.tolist(), other.runs.tolist()
    n = m = here = there = 0  # current runs, and their positions in the slots
    while n < len(ours) and m < len(theirs):
        (a, b), (c, d) = ours[n], theirs[m]
        start, stop = max(a, c), min(b, d)
        if start < stop:
            yield CommonRun(here + start - a, there + start - c, stop - start)
        if b <= d:
            n, here = n + 1, here + b - a
        if d <= b:
            m, there = m + 1, there + d - c
