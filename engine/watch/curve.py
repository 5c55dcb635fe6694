"""A series of numbers over a run, of bounded size however long the run is."""

from __future__ import annotations

from typing import Final, NamedTuple

MOST_POINTS: Final = 1_000
"""Largest number of points that a curve keeps: as many as a wide screen has columns for, twice over."""


class Point(NamedTuple):
    """A number of the run: when (seconds of the run), after how many steps, and how much."""

    at_s: float
    step: int
    value: float


class Curve:
    """Keeps each `stride`-th point and always the last one. The stride doubles when there are too many."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        """A curve without points that keeps at most `most` of them, and the last."""
        self._most: Final = most
        self._kept: list[Point] = []
        self._last: Point | None = None
        self._count, self._stride = 0, 1

    def add(self, point: Point) -> None:
        """Adds the next point."""
        self._last = point
        if self._count % self._stride == 0:
            self._kept.append(point)
            if len(self._kept) > self._most:
                self._kept, self._stride = self._kept[::2], 2 * self._stride
        self._count += 1

    @property
    def points(self) -> list[Point]:
        """The points that are kept, by time, with the newest one as the last; a new list."""
        newest = [] if self._last is None or self._kept[-1] is self._last else [self._last]
        return [*self._kept, *newest]

    @property
    def last(self) -> Point | None:
        """The newest point; None where there is none."""
        return self._last

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Curve) and self.points == other.points

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __len__(self) -> int:
        return len(self.points)
