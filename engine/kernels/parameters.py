"""The numbers of a parameter that belong to a node."""

from __future__ import annotations

from partita.layers.graph import Grid
from partita.layers.layer import Parameter


def is_per_node(parameter: Parameter, grid: Grid) -> bool:
    """Returns whether a parameter holds one number for each node of the grid, and not one for each edge.

    A shared parameter has a part for each filter (a node's place on the last axis), which all nodes of the
    filter use, or one for all nodes.
    """
    if parameter.shared:
        return parameter.shape in (grid.shape[-1:], (1,))
    return parameter.row_starts is None and parameter.shape == grid.shape
