"""Sets of rows of a layer: ascending disjoint runs `(start, stop)`. A layer is cut along its rows (axis 0).

In a plan that cuts a picture into tiles, the sets of every picture are of boxes `(start, stop, left, right)`
instead, rows and columns, in the order and form that `boxes` describes. A set has runs of one kind only.

Plain arithmetic on tuples of ints: what the connectivities, the partitioner and the messages share.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias, TypeVar, cast

from partita.layers import boxes

Run: TypeAlias = tuple[int, ...]
"""`(start, stop)` of axis 0, or `(start, stop, left, right)` of axes 0 and 1."""
Rows: TypeAlias = tuple[Run, ...]
"""Ascending, disjoint, non-empty runs that do not touch one another; `()` is the empty set."""
WholeRows: TypeAlias = tuple[tuple[int, int], ...]
"""A set that has no boxes: kernels know no others, because a tile is a whole grid to them."""
R = TypeVar("R", bound=Run)


def union(*sets: Iterable[R]) -> tuple[R, ...]:
    """Every row that is in at least one of the sets. Accepts runs in any order, touching or overlapping."""
    runs = sorted(run for runs in sets for run in runs if run[0] < run[1])
    if runs and len(runs[0]) > 2:
        return cast(tuple[R, ...], boxes.united(runs))
    merged: list[tuple[int, int]] = []
    for start, stop in runs:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return cast(tuple[R, ...], tuple(merged))


def intersection(left: tuple[R, ...], right: tuple[R, ...]) -> tuple[R, ...]:
    """Every row that is in both sets."""
    if not left or not right:
        return ()
    if len(left[0]) > 2:
        return cast(tuple[R, ...], boxes.common(left, right))
    found = [(max(a, c), min(b, d)) for a, b in left for c, d in right if a < d and c < b]
    return cast(tuple[R, ...], tuple(found) if len(found) < 2 else union(found))


def difference(left: tuple[R, ...], right: tuple[R, ...]) -> tuple[R, ...]:
    """Every row of `left` that is not in `right`."""
    if not left or not right:
        return left
    if len(left[0]) > 2:
        return cast(tuple[R, ...], boxes.without(left, right))
    rest: list[Run] = list(left)
    for start, stop in right:
        rest = [
            piece for a, b in rest for piece in ((a, min(b, start)), (max(a, stop), b)) if piece[0] < piece[1]
        ]
    return cast(tuple[R, ...], union(rest))


def overlap(left: Rows, right: Rows) -> bool:
    """Whether some row is in both sets."""
    if not left or not right:
        return False
    if len(left[0]) > 2:
        return any(a < f and e < b and c < h and g < d for a, b, c, d in left for e, f, g, h in right)
    if len(left) == len(right) == 1:
        return left[0][0] < right[0][1] and right[0][0] < left[0][1]
    return any(a < d and c < b for a, b in left for c, d in right)


def from_indices(indices: Iterable[int]) -> WholeRows:
    """The set of these single rows."""
    return union((index, index + 1) for index in indices)


def count(rows: Rows) -> int:
    """How many rows the set has; of boxes, how many places."""
    if rows and len(rows[0]) > 2:
        return boxes.number(rows)
    return sum(stop - start for start, stop in rows)


def bounds(rows: tuple[R, ...]) -> R:
    """The smallest run that contains the set; `(0, 0)` for the empty set."""
    if rows and len(rows[0]) > 2:
        return cast(R, boxes.around(rows))
    return cast(R, (rows[0][0], rows[-1][1]) if rows else (0, 0))


def along(rows: Rows) -> WholeRows:
    """The rows of axis 0 alone, in runs `(start, stop)`."""
    return union((run[0], run[1]) for run in rows)


def across(rows: Rows, columns: tuple[int, int]) -> Rows:
    """Boxes of these runs of rows and columns `[left, right)`."""
    return tuple((run[0], run[1], *columns) for run in rows)


def text(rows: Rows) -> str:
    """`0:3,5:8`, and boxes as `0:3x4:8`, as programs and tables print it."""
    return ",".join("x".join(f"{a}:{b}" for a, b in zip(run[::2], run[1::2], strict=True)) for run in rows)


def parse(written: str) -> Rows:
    """The set that `text` wrote.

    Raises:
        ValueError: it is not of that form.
    """
    runs = []
    for run in filter(None, written.split(",")):
        ends: list[int] = []
        for axis in run.split("x"):
            start, colon, stop = axis.partition(":")
            if not colon:
                raise ValueError(
                    f"'{run}' is not a run of rows; write start:stop, for example 0:3 or 0:3x4:8"
                )
            ends += int(start), int(stop)
        runs.append(tuple(ends))
    return tuple(runs)
