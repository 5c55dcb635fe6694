"""Spans of time: starts and stops, in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TypeAlias

Span: TypeAlias = tuple[float, float]


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Returns the same times as disjoint spans in order."""
    found: list[Span] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return tuple(found)


def without(spans: tuple[Span, ...], others: tuple[Span, ...]) -> tuple[Span, ...]:
    """Returns the parts of the first spans that lie in none of the others; both disjoint and in order."""
    found: list[Span] = []
    first = 0
    for start, stop in spans:
        while first < len(others) and others[first][1] <= start:
            first += 1
        for a, b in islice(others, first, None):
            if a >= stop:
                break
            if a > start:
                found.append((start, a))
            start = max(start, b)
        if start < stop:
            found.append((start, stop))
    return tuple(found)


def length(spans: Iterable[Span]) -> float:
    """Returns the sum of the spans' lengths."""
    return sum(stop - start for start, stop in spans)
