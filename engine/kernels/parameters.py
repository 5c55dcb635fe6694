"""Which number of a parameter belongs to which node."""

from __future__ import annotations

from partita.layers.graph import Grid
from partita.layers.layer import Parameter


def is_per_node(parameter: Parameter, grid: Grid) -> bool:
    """Whether a parameter holds one number for each node of the grid, and not one for each edge."""
    return parameter.row_starts is None and parameter.shape == grid.shape
