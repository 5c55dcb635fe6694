"""Work units that are not assigned: a range for each replica, and units that have lost their replica.

A replica takes from its own range, in order, so that it gets sequential portions again and again; then from
the units without a replica; then the end of the longest range.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence


class WorkQueue:
    """The waiting units of one evaluation after another, by number."""

    def __init__(self) -> None:
        self._ranges: dict[int, deque[int]] = {}
        self._orphans: deque[int] = deque()
        self._longest: list[tuple[int, int]] = []  # (-length, replica), a heap; lengths may be old, too large
        self._left = 0

    def __len__(self) -> int:
        return self._left

    def __iter__(self) -> Iterator[int]:
        yield from self._orphans
        for numbers in self._ranges.values():
            yield from numbers

    def begin(self, units: int, replicas: Sequence[int]) -> None:
        """Divides the units of an evaluation evenly among these replicas."""
        self.clear()
        self._left = units
        for n, replica in enumerate(replicas):
            first, stop = (units * k // len(replicas) for k in (n, n + 1))
            self._ranges[replica] = deque(range(first, stop))
            self._longest.append((first - stop, replica))
        heapq.heapify(self._longest)
        if not replicas:
            self._orphans.extend(range(units))

    def clear(self) -> None:
        """Removes all entries of the queue."""
        self._ranges.clear()
        self._orphans.clear()
        self._longest.clear()
        self._left = 0

    def leave(self, replica: int) -> None:
        """Takes the units in this replica's range from it."""
        self._orphans += self._ranges.pop(replica, ())

    def add(self, unit: int) -> None:
        """Adds a unit without a replica."""
        self._orphans.append(unit)
        self._left += 1

    def take(self, replica: int) -> int | None:
        """Removes and returns the next unit for this replica; None where none waits."""
        if not self._left:
            return None
        self._left -= 1
        own = self._ranges.get(replica)
        if own:
            return own.popleft()
        return self._orphans.popleft() if self._orphans else self._longest_range().pop()

    def _longest_range(self) -> deque[int]:
        """Updates lengths in the heap when they come to the top: ranges only become shorter."""
        while True:
            length, replica = self._longest[0]
            numbers = self._ranges.get(replica, ())
            if numbers and len(numbers) == -length:
                return self._ranges[replica]
            if numbers:
                heapq.heapreplace(self._longest, (-len(numbers), replica))
            else:
                heapq.heappop(self._longest)
