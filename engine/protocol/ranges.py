"""Sets of whole numbers as ascending ranges: units of work that are done, free, or held by a shard."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from partita.engine.protocol.message_base import UnitRange


class Ranges:
    """A set of whole numbers, as ascending ranges `[start, stop)` of which none touches the next."""

    def __init__(self, ranges: Iterable[UnitRange] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.size = 0
        for start, stop in ranges:
            self.add(start, stop)

    def __iter__(self) -> Iterator[UnitRange]:
        return iter(zip(self._starts, self._stops, strict=True))

    def __len__(self) -> int:
        return len(self._starts)

    def __contains__(self, number: int) -> bool:
        n = bisect_right(self._starts, number)
        return n > 0 and number < self._stops[n - 1]

    def add(self, start: int, stop: int) -> None:
        """Adds a range, none of whose numbers is in the set."""
        if start >= stop:
            return
        n = bisect_right(self._starts, start)
        before = n > 0 and self._stops[n - 1] == start
        after = n < len(self._starts) and self._starts[n] == stop
        assert n == 0 or self._stops[n - 1] <= start, (start, stop, self._stops[n - 1])
        assert n == len(self._starts) or stop <= self._starts[n], (start, stop, self._starts[n])
        self.size += stop - start
        if before and after:
            self._stops[n - 1] = self._stops.pop(n)
            del self._starts[n]
        elif before:
            self._stops[n - 1] = stop
        elif after:
            self._starts[n] = start
        else:
            self._starts.insert(n, start)
            self._stops.insert(n, stop)

    def take(self, most: int) -> UnitRange:
        """Removes the first range, or its first `most` numbers, from a set that is not empty."""
        start, stop = self._starts[0], self._stops[0]
        end = min(start + most, stop)
        self.size -= end - start
        if end < stop:
            self._starts[0] = end
        else:
            del self._starts[0], self._stops[0]
        return start, end

    def cut(self, size: int) -> UnitRange:
        """Removes the numbers from `size` on, from a set that is `[0, n)`; returns their range."""
        stop, self.size = self.size, size
        self._starts, self._stops = ([0], [size]) if size else ([], [])
        return size, stop

    def gaps(self, first: int, size: int) -> Iterator[UnitRange]:
        """Yields the ranges of the numbers from `first` on and below `size` that are not in the set."""
        for n in range(bisect_right(self._stops, first), len(self._starts)):
            start = self._starts[n]
            if start >= size:
                break
            if first < start:
                yield first, start
            first = self._stops[n]
        if first < size:
            yield first, size

    def cover(self, start: int, stop: int) -> None:
        """Adds a range, of which the set may have some numbers."""
        if start >= stop:
            return
        if self._stops and start == self._stops[-1]:  # mostly
            self._stops[-1] = stop
            self.size += stop - start
            return
        first, last = bisect_left(self._stops, start), bisect_right(self._starts, stop)
        if first < last:  # these touch it
            start, stop = min(start, self._starts[first]), max(stop, self._stops[last - 1])
            self.size -= sum(self._stops[n] - self._starts[n] for n in range(first, last))
        self._starts[first:last], self._stops[first:last] = [start], [stop]
        self.size += stop - start

    def discard(self, start: int, stop: int) -> None:
        """Removes the numbers of a range, as far as the set has them."""
        if not any(self.common(((start, stop),))):
            return
        rest = [part for one in self for part in Ranges(((start, stop),)).gaps(*one)]
        self._starts, self._stops = [one[0] for one in rest], [one[1] for one in rest]
        self.size = sum(b - a for a, b in rest)

    def common(self, others: Iterable[UnitRange]) -> Iterator[UnitRange]:
        """Yields the ranges of the numbers that are in the set and in others, which are ascending."""
        for start, stop in others:
            if start >= stop:
                continue
            n = bisect_right(self._stops, start)
            while n < len(self._starts) and self._starts[n] < stop:
                yield max(start, self._starts[n]), min(stop, self._stops[n])
                n += 1
