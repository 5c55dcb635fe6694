"""Boxes of nodes and sets of them: the only geometry of networks, plans and messages.

Layers are cut along axis 0, so most boxes of a plan name that axis alone and are whole on the others. Where a
plan cuts a picture into tiles, its boxes name rows and columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

Shape: TypeAlias = tuple[int, ...]
"""Nodes on each axis of a grid."""

Extent: TypeAlias = int | tuple[int, ...]
"""A length on every axis, or one for each."""

Margins: TypeAlias = tuple[tuple[int, int], ...]
"""For each axis, how much is added before it and behind it."""

Span: TypeAlias = tuple[int, int]
"""Positions `[start, stop)` along one axis."""

Spans: TypeAlias = tuple[Span, ...]
"""Ascending spans that do not touch: rows as kernels know them, to which a tile is a whole grid."""


class Box(tuple[Span, ...]):
    """`(start, stop)` for each axis of a grid, or for its first axes; the grid's other axes are whole.

    An immutable tuple of spans: boxes compare, hash and sort as tuples do.
    """

    __slots__ = ()

    @classmethod
    def whole(cls, shape: Shape) -> Box:
        """Every node of a grid of this shape."""
        return cls((0, extent) for extent in shape)

    @classmethod
    def of_rows(cls, start: int, stop: int, *, shape: Shape = ()) -> Box:
        """Rows `[start, stop)` of axis 0, whole on every other axis of `shape`."""
        return cls(((start, stop), *((0, extent) for extent in shape[1:])))

    @property
    def bounds(self) -> tuple[Span, ...]:
        """`(start, stop)` for each axis."""
        return tuple(self)

    @property
    def shape(self) -> Shape:
        """Extent of each axis; 0 where the box is empty."""
        return tuple(max(stop - start, 0) for start, stop in self)

    @property
    def size(self) -> int:
        """Number of places: nodes, if the box names every axis of its grid."""
        return math.prod(self.shape)

    @property
    def rows(self) -> Span:
        """The span of axis 0; `(0, 0)` when the box is empty."""
        return self[0] if self.size else (0, 0)

    @property
    def columns(self) -> Span | None:
        """The span of axis 1; None where the box names axis 0 alone."""
        return self[1] if len(self) > 1 else None

    @property
    def slices(self) -> tuple[slice, ...]:
        """Index of the box in an array of the whole grid."""
        return tuple(slice(start, stop) for start, stop in self)

    @property
    def text(self) -> str:
        """The text that plans print, which gives start and stop of each axis."""
        return "x".join(f"{start}:{stop}" for start, stop in self)

    def on(self, n_axes: int) -> Box:
        """The box on its first axes alone; zero on all when it is empty."""
        return Box(self[:n_axes] if self.size else ((0, 0),) * n_axes)

    def over(self, shape: Shape) -> Box:
        """The box with every axis of a grid of this shape: the missing ones are whole."""
        return Box((*self, *((0, extent) for extent in shape[len(self) :])))

    def __str__(self) -> str:
        return "[" + ", ".join(f"{start}:{stop}" for start, stop in self) + "]"

    def __repr__(self) -> str:
        return f"Box({super().__repr__()})"


class BoxSet(tuple[Box, ...]):
    """A set of places as disjoint boxes, ascending, all with the same axes; `BoxSet()` is the empty set.

    Equal sets are equal tuples. Along the last axis spans do not touch. Wherever the cross-section changes
    from one position of an axis to the next, a band begins; bands that touch differ.
    """

    __slots__ = ()

    @classmethod
    def of_rows(cls, *spans: Span) -> BoxSet:
        """Spans of axis 0, in any order, touching or overlapping."""
        return cls.union(Box((span,)) for span in spans)

    @classmethod
    def union(cls, *sets: Iterable[Box]) -> BoxSet:
        """Every place of the boxes, in any order, touching or overlapping."""
        boxes = [box for some in sets for box in some if all(start < stop for start, stop in box)]
        return cls(boxes) if len(boxes) < 2 else cls(map(Box, _united(boxes)))

    @classmethod
    def parse(cls, written: str) -> BoxSet:
        """The set that `str` wrote.

        Raises:
            ValueError: it is not of that form.
        """
        return cls(Box(_parse_spans(box)) for box in written.split(",") if box)

    @property
    def size(self) -> int:
        """Number of places inside."""
        total = 0
        for box in self:
            n = 1
            for start, stop in box:
                n *= stop - start
            total += n
        return total

    @property
    def hull(self) -> Box:
        """The smallest box that contains the set; the rows `(0, 0)` for the empty set."""
        if not self:
            return Box(((0, 0),))
        if len(self) == 1:
            return self[0]
        return Box(
            (min(starts), max(stops))
            for starts, stops in (zip(*axis, strict=True) for axis in zip(*self, strict=True))
        )

    @property
    def rows(self) -> BoxSet:
        """The set's rows alone: boxes of axis 0."""
        return BoxSet.of_rows(*(box[0] for box in self))

    @property
    def spans(self) -> Spans:
        """The spans of axis 0."""
        return tuple(_merged(box[0] for box in self))

    def across(self, columns: Span) -> BoxSet:
        """Boxes of the set's rows and these columns."""
        return BoxSet(Box((span, columns)) for span in self.spans)

    def overlaps(self, other: BoxSet) -> bool:
        """Returns whether some place is in both sets."""
        for one in self:
            for two in other:
                if _meet(one, two):
                    return True
        return False

    def __or__(self, other: BoxSet) -> BoxSet:
        return BoxSet.union(self, other) if self and other else self or other

    def __and__(self, other: BoxSet) -> BoxSet:
        found = [_common(one, two) for one in self for two in other if _meet(one, two)]
        return BoxSet(found) if len(found) < 2 else BoxSet.union(found)

    def __sub__(self, other: BoxSet) -> BoxSet:
        if not self.overlaps(other):
            return self
        rest: list[tuple[Span, ...]] = list(self)
        for box in other:
            rest = [piece for one in rest for piece in _without(one, box)]
        return BoxSet(map(Box, _united(rest)))

    def __str__(self) -> str:
        return ",".join(box.text for box in self)

    def __repr__(self) -> str:
        return f"BoxSet.parse('{self}')"


NOTHING: Final = BoxSet()
"""The set without any place."""

BLOCK: Final = BoxSet.of_rows((0, 1))
"""The one row `[0, 1)`: of weights that all nodes share."""


def _meet(one: tuple[Span, ...], two: tuple[Span, ...]) -> bool:
    for (a, b), (c, d) in zip(one, two):  # noqa: B905, SIM110 - the search's hottest loop
        if a >= d or c >= b:
            return False
    return True


def _common(one: Box, two: Box) -> Box:
    return Box([(max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, two, strict=True)])


def _without(box: tuple[Span, ...], other: tuple[Span, ...]) -> Iterator[tuple[Span, ...]]:
    """Disjoint boxes of what is in `box` and not in `other`."""
    if not _meet(box, other):
        yield box
        return
    (a, b), (c, d) = box[0], other[0]
    top, bottom = max(a, c), min(b, d)
    if a < top:
        yield ((a, top), *box[1:])
    for rest in _without(box[1:], other[1:]) if len(box) > 1 else ():
        yield ((top, bottom), *rest)
    if bottom < b:
        yield ((bottom, b), *box[1:])


def _united(boxes: Sequence[tuple[Span, ...]]) -> list[tuple[Span, ...]]:
    """The canonical form of boxes that are not empty."""
    if not boxes or len(boxes[0]) == 1:
        return [(span,) for span in _merged(box[0] for box in boxes)]
    bands: list[tuple[Span, list[tuple[Span, ...]]]] = []
    for start, stop in pairwise(sorted({end for box in boxes for end in box[0]})):
        section = _united([box[1:] for box in boxes if box[0][0] < stop and start < box[0][1]])
        if bands and section and bands[-1][0][1] == start and bands[-1][1] == section:
            bands[-1] = ((bands[-1][0][0], stop), section)
        elif section:
            bands.append(((start, stop), section))
    return [(span, *rest) for span, section in bands for rest in section]


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Ascending spans that do not touch."""
    found: list[Span] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


def _parse_spans(written: str) -> Iterator[Span]:
    for axis in written.split("x"):
        start, colon, stop = axis.partition(":")
        if not colon:
            raise ValueError(
                f"'{written}' is not a run of rows; write start:stop, for example 0:3 or 0:3x4:8"
            )
        yield int(start), int(stop)
