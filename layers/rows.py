"""Sets of rows of a layer: ascending disjoint runs `(start, stop)`. A layer is cut along its rows (axis 0).

Plain arithmetic on tuples of ints: what the connectivities, the partitioner and the messages share.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Rows: TypeAlias = tuple[tuple[int, int], ...]
"""Ascending, disjoint, non-empty runs that do not touch one another; `()` is the empty set."""


def union(*sets: Iterable[tuple[int, int]]) -> Rows:
    """Every row that is in at least one of the sets. Accepts runs in any order, touching or overlapping."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(run for runs in sets for run in runs if run[0] < run[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return tuple(merged)


def intersection(left: Rows, right: Rows) -> Rows:
    """Every row that is in both sets."""
    return union((max(a, c), min(b, d)) for a, b in left for c, d in right if max(a, c) < min(b, d))


def difference(left: Rows, right: Rows) -> Rows:
    """Every row of `left` that is not in `right`."""
    rest = list(left)
    for start, stop in right:
        rest = [
            piece for a, b in rest for piece in ((a, min(b, start)), (max(a, stop), b)) if piece[0] < piece[1]
        ]
    return union(rest)


def from_indices(indices: Iterable[int]) -> Rows:
    """The set of these single rows."""
    return union((index, index + 1) for index in indices)


def count(rows: Rows) -> int:
    """How many rows the set has."""
    return sum(stop - start for start, stop in rows)


def bounds(rows: Rows) -> tuple[int, int]:
    """The smallest run that contains the set; `(0, 0)` for the empty set."""
    return (rows[0][0], rows[-1][1]) if rows else (0, 0)


def text(rows: Rows) -> str:
    """`0:3,5:8`, as programs and tables print it."""
    return ",".join(f"{start}:{stop}" for start, stop in rows)


def parse(written: str) -> Rows:
    """The set that `text` wrote.

    Raises:
        ValueError: it is not of that form.
    """
    runs = []
    for run in filter(None, written.split(",")):
        start, colon, stop = run.partition(":")
        if not colon:
            raise ValueError(f"'{run}' is not a run of rows; write start:stop, for example 0:3")
        runs.append((int(start), int(stop)))
    return tuple(runs)
