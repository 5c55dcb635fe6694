"""Tiles: whether pieces are a grid of them, and the bands of rows that they make."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import product

from partita.layers.box import Box, Span, Spans


def are_tiles(pieces: Sequence[Box], whole: Box) -> bool:
    """Whether pieces, in ascending order, cover a grid once: one after another, or as the tiles of a grid."""
    if any(len(piece) != len(whole) for piece in pieces):
        return False
    axes = [_consecutive({piece[axis] for piece in pieces}, whole[axis]) for axis in range(len(whole))]
    return list(pieces) == list(product(*axes))


def bands(pieces: Sequence[Box]) -> Spans:
    """The spans of axis 0 into which pieces cut a grid, ascending."""
    return tuple(sorted({piece[0] for piece in pieces}))


def _consecutive(spans: Set[Span], whole: Span) -> list[Span]:
    """The spans of one axis, ascending, if they cover it one after another; else none."""
    ordered = sorted(spans)
    ends = [whole[0], *(end for span in ordered for end in span), whole[1]]
    follow = all(a == b for a, b in zip(ends[::2], ends[1::2], strict=True))
    return ordered if follow and all(start < stop for start, stop in ordered) else []
