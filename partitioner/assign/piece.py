"""Pieces: the rows of a layer that one machine owns, and their operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from partita.layers.box import Box, BoxSet
from partita.layers.graph import Graph, Grid


@dataclass(frozen=True, order=True)
class Piece:
    """The rows `[start, stop)` of a layer that one machine owns.

    Args:
        layer: name of the layer.
        start, stop: rows along axis 0.
        machine: number of the machine.
        columns: `[left, right)` of axis 1; for every piece of a picture if some picture is cut into tiles.
        inputs: rows of the input whose weights the machine has, in a layer that is cut by its inputs.
    """

    layer: str
    start: int
    stop: int
    machine: int
    columns: tuple[int, int] | None = None
    inputs: tuple[int, int] | None = None

    @property
    def box(self) -> Box:
        """The rows of the piece, or its rows and columns."""
        rows = (self.start, self.stop)
        return Box((rows,) if self.columns is None else (rows, self.columns))

    @property
    def rows(self) -> BoxSet:
        """The box as a set of rows."""
        return BoxSet((self.box,))

    def __repr__(self) -> str:
        columns = "" if self.columns is None else f", columns={self.columns}"
        inputs = "" if self.inputs is None else f", inputs={self.inputs}"
        rows = f"start={self.start}, stop={self.stop}"
        return f"Piece(layer={self.layer!r}, {rows}, machine={self.machine}{columns}{inputs})"


def boundaries(weights: Mapping[int, float], extent: int) -> tuple[int, ...]:
    """Boundaries, from 0 to `extent`, of pieces in proportion to the weights, with at least one row each."""
    total, met = sum(weights.values()), 0.0
    found = [0]
    for k, weight in enumerate(weights.values(), start=1):
        met += weight
        least, most = found[-1] + 1, extent - (len(weights) - k)
        found.append(min(max(round(extent * met / total), least), most))
    assert found[-1] == extent and all(a < b for a, b in pairwise(found))
    return tuple(found)


def row_flops(grid: Grid, *, batch: int) -> float:
    """Floating-point operations of one row of a layer for a batch, forward."""
    return grid.nodes_per_row * grid.flops_per_node * batch


def rows_worth(graph: Graph, piece: Piece) -> float:
    """Number of whole rows of a layer that have as many operations as a piece."""
    grid = graph[piece.layer]
    if piece.inputs is None:
        return grid.nodes_in(piece.rows) / grid.nodes_per_row
    return grid.n_rows * (piece.inputs[1] - piece.inputs[0]) / graph[grid.sources[0]].n_rows


def flops_of(graph: Graph, piece: Piece, *, batch: int) -> float:
    """Floating-point operations of a piece for a batch, forward."""
    return rows_worth(graph, piece) * row_flops(graph[piece.layer], batch=batch)
