"""Coverage: whether the pieces of a layer cover its rows once, and the bands of rows that tiles make."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import replace
from itertools import product

from partita.layers.box import Box, BoxSet, Span
from partita.layers.graph import Graph, Grid
from partita.partitioner.assign.piece import Piece


def is_tile(graph: Graph, piece: Piece) -> bool:
    """Returns whether a piece names some columns of its layer, but not all."""
    return piece.columns is not None and piece.columns != (0, graph[piece.layer].shape[1])


def with_columns(graph: Graph, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Pieces of pictures with their columns if some picture is cut into tiles, otherwise without."""
    pictures = {grid.name for grid in graph.grids if grid.is_picture}
    if not any(is_tile(graph, piece) for piece in pieces if piece.layer in pictures):
        return tuple(replace(p, columns=None) if p.columns else p for p in pieces)
    return tuple(
        replace(p, columns=(0, graph[p.layer].shape[1])) if p.layer in pictures and not p.columns else p
        for p in pieces
    )


def check_coverage(
    grid: Grid, pieces: Sequence[Piece], graph: Graph, machines: int, tiled: Collection[str]
) -> None:
    """Refuses pieces of a layer that do not cover it once, or as often as replicas may.

    Raises:
        ValueError: they do not, one is empty or on no machine, or a machine has two.
    """
    owners = [piece.machine for piece in pieces]
    if not _covers(grid, pieces, tiled):
        raise ValueError(
            f"the pieces of '{grid.name}' do not cover its {grid.n_rows} rows once: {tuple(pieces)}"
        )
    if any(piece.start >= piece.stop or not 0 <= piece.machine < machines for piece in pieces):
        raise ValueError(f"a piece of '{grid.name}' is empty or on no machine: {tuple(pieces)}")
    if len(set(owners)) < len(owners):
        raise ValueError(f"a machine has two pieces of '{grid.name}'; give each machine one: {owners}")
    if any(piece.inputs is not None for piece in pieces):
        _check_inputs(grid, pieces, graph[grid.sources[0]], tiled)


def _covers(grid: Grid, pieces: Sequence[Piece], tiled: Collection[str]) -> bool:
    boxes = [piece.box for piece in pieces]
    n_places = sum(box.size for box in boxes)
    if tiled and grid.is_picture:
        if n_places > grid.whole.size:
            raise ValueError(
                f"several machines have rows of the picture '{grid.name}', while "
                f"'{min(tiled)}' is cut into tiles, which has no replicas; give each row of "
                f"'{grid.name}' to one machine, or cut '{min(tiled)}' by rows"
            )
        return are_tiles(boxes, grid.whole)
    if BoxSet.union(boxes) != grid.rows:
        return False
    if n_places <= grid.n_rows:
        return True
    if pieces[0].inputs is not None:  # every machine has all rows
        return all(box == grid.rows.hull for box in boxes)
    return grid.replicable


def _check_inputs(grid: Grid, pieces: Sequence[Piece], source: Grid, tiled: Collection[str]) -> None:
    """Refuses pieces that do not multiply each row of the input once."""
    if tiled and (grid.is_picture or source.name in tiled):
        raise ValueError(
            f"'{grid.name}' is cut by its inputs, which goes with no tiles, but '{min(tiled)}' is "
            f"cut into tiles; cut '{grid.name}' by rows"
        )
    spans = [piece.inputs or (0, 0) for piece in pieces]
    if not grid.layer.splits_sum or not _consecutive(spans, (0, source.n_rows)):
        raise ValueError(
            f"the pieces of '{grid.name}' do not cover the {source.n_rows} rows of its input once: "
            f"{tuple(pieces)}"
        )


def are_tiles(pieces: Sequence[Box], whole: Box) -> bool:
    """Returns whether boxes, in ascending order, are a grid of tiles that covers `whole` once."""
    if any(len(piece) != len(whole) for piece in pieces):
        return False
    axes = [_consecutive({piece[axis] for piece in pieces}, whole[axis]) for axis in range(len(whole))]
    return list(pieces) == list(product(*axes))


def in_bands(rows: BoxSet, pieces: Sequence[Piece], columns: Span) -> list[BoxSet]:
    """Divides these columns of rows by the spans of axis 0 into which pieces cut a grid, ascending."""
    spans = sorted({piece.box[0] for piece in pieces})
    found = (rows & BoxSet((Box((span, columns)),)) for span in spans)
    return [some for some in found if some]


def _consecutive(spans: Set[Span] | Sequence[Span], whole: Span) -> list[Span]:
    """The spans of one axis, ascending, if they cover it one after another; otherwise none."""
    ordered = sorted(spans)
    ends = [whole[0], *(end for span in ordered for end in span), whole[1]]
    follow = all(a == b for a, b in zip(ends[::2], ends[1::2], strict=True))
    return ordered if follow and all(start < stop for start, stop in ordered) else []
