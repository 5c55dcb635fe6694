"""The numbers of a parameter that belong to a node."""

from __future__ import annotations

from partita.layers.graph import Grid
from partita.layers.layer import Parameter


def is_per_node(parameter: Parameter, grid: Grid) -> bool:
    """Whether a parameter holds one number for each node of the grid, and not one for each edge.

    A shared parameter has a part for each filter (a node's place on the last axis), which all its nodes use.
    """
    whose = grid.shape[-1:] if parameter.shared else grid.shape
    return parameter.row_starts is None and parameter.shape == whose


def part_of(parameter: Parameter, grid: Grid, node: int, edges: slice) -> slice | int:
    """Finds the part of a node in a flat parameter: its one number, or those of its edges.

    Args:
        parameter: of the layer.
        grid: the layer.
        node: its position in the flat grid.
        edges: its edges among all edges of the layer.
    """
    if not parameter.shared:
        return node if is_per_node(parameter, grid) else edges
    whose, size = node % grid.shape[-1], parameter.size // grid.shape[-1]
    return whose if is_per_node(parameter, grid) else slice(whose * size, (whose + 1) * size)
