"""Tiles: whether pieces are a grid of them, and the bands of rows that they make."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from partita.layers.rows import Run


def are_tiles(pieces: Sequence[Run], whole: Run) -> bool:
    """Whether pieces, in ascending order, cover a grid once: one after another, or as the tiles of a grid."""
    axes = [_stretches(pieces, axis, whole) for axis in range(len(whole) // 2)]
    if any(axis is None for axis in axes):
        return False
    expected = [tuple(end for run in tile for end in run) for tile in product(*(axis or () for axis in axes))]
    return list(pieces) == expected


def bands(pieces: Sequence[Run]) -> tuple[tuple[int, int], ...]:
    """The runs of rows `[start, stop)` of axis 0 into which pieces cut a grid, ascending."""
    return tuple(sorted({(piece[0], piece[1]) for piece in pieces}))


def _stretches(pieces: Sequence[Run], axis: int, whole: Run) -> list[tuple[int, int]] | None:
    """The runs of one axis, ascending, if they follow one another from its beginning to its end."""
    if any(len(piece) != len(whole) for piece in pieces):
        return None
    runs = sorted({(piece[2 * axis], piece[2 * axis + 1]) for piece in pieces})
    ends = [whole[2 * axis], *(end for run in runs for end in run), whole[2 * axis + 1]]
    follow = all(a == b for a, b in zip(ends[::2], ends[1::2], strict=True))
    return runs if runs and follow and all(a < b for a, b in runs) else None
