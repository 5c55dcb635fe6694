"""Sets of places of a picture, as boxes `(start, stop, left, right)` of its first two axes: what `rows` does
with runs of rows, for tiles.

A set is written in one way only. Wherever the columns change from one row to the next a band begins; a band
has the runs of columns that all of its rows have; bands that touch differ. Boxes ascend by rows, then by
columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

Box: TypeAlias = tuple[int, ...]
"""`(start, stop, left, right)`: rows `[start, stop)` of axis 0, columns `[left, right)` of axis 1."""
Boxes: TypeAlias = tuple[Box, ...]


def united(boxes: Sequence[Box]) -> Boxes:
    """Every place that is in at least one of the boxes, in any order, touching or overlapping."""
    found = [box for box in boxes if box[0] < box[1] and box[2] < box[3]]
    if len(found) < 2:
        return tuple(found)
    found.sort()
    if _is_one_band(found):
        return tuple((*found[0][:2], *run) for run in _columns(found))
    edges = sorted({edge for box in found for edge in box[:2]})
    bands: list[tuple[int, int, list[tuple[int, int]]]] = []
    for start, stop in pairwise(edges):
        columns = _columns([box for box in found if box[0] < stop and start < box[1]])
        if bands and columns and bands[-1][1] == start and bands[-1][2] == columns:
            bands[-1] = (bands[-1][0], stop, columns)
        elif columns:
            bands.append((start, stop, columns))
    return tuple((start, stop, *run) for start, stop, columns in bands for run in columns)


def common(left: Boxes, right: Boxes) -> Boxes:
    """Every place that is in both sets."""
    found = [
        (max(a, e), min(b, f), max(c, g), min(d, h))
        for a, b, c, d in left
        for e, f, g, h in right
        if a < f and e < b and c < h and g < d
    ]
    return tuple(found) if len(found) < 2 else united(found)


def without(left: Boxes, right: Boxes) -> Boxes:
    """Every place of `left` that is not in `right`."""
    rest: list[Box] = list(left)
    changed = False
    for other in right:
        kept: list[Box] = []
        for box in rest:
            parts = list(_without_one(box, other))
            changed = changed or parts != [box]
            kept.extend(parts)
        rest = kept
    return united(rest) if changed else left


def number(boxes: Boxes) -> int:
    """How many places the set has."""
    return sum((stop - start) * (right - left) for start, stop, left, right in boxes)


def around(boxes: Boxes) -> Box:
    """The smallest box that contains the set, which is not empty."""
    return (
        boxes[0][0],
        max(box[1] for box in boxes),
        min(box[2] for box in boxes),
        max(box[3] for box in boxes),
    )


def _without_one(box: Box, other: Box) -> Iterable[Box]:
    (a, b, c, d), (e, f, g, h) = box, other
    if not (a < f and e < b and c < h and g < d):
        yield box
        return
    top, bottom = max(a, e), min(b, f)
    for part in ((a, top, c, d), (top, bottom, c, g), (top, bottom, h, d), (bottom, b, c, d)):
        if part[0] < part[1] and part[2] < part[3]:
            yield part


def _is_one_band(boxes: Sequence[Box]) -> bool:
    return all(box[:2] == boxes[0][:2] for box in boxes)


def _columns(boxes: Sequence[Box]) -> list[tuple[int, int]]:
    """The runs of columns of some boxes."""
    merged: list[tuple[int, int]] = []
    for left, right in sorted((box[2], box[3]) for box in boxes):
        if merged and left <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(right, merged[-1][1]))
        else:
            merged.append((left, right))
    return merged
