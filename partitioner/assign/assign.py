"""From one cut for each layer to the ownership of a plan."""

from __future__ import annotations

from partita.layers.graph import Graph, Grid
from partita.layers.losses import Loss
from partita.partitioner.assign.cuts import Cuts, cut_layer, following, follows_input, with_scores
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.assign.piece import Piece


def assigned(graph: Graph, machines: int, cuts: Cuts) -> Ownership:
    """Returns the ownership that follows from cuts for all layers; losses without one lie with their scores.

    Raises:
        ValueError: a cut cannot be.
    """
    found: dict[str, tuple[Piece, ...]] = {}
    for grid in graph.computed:
        if grid.name in cuts:
            below, cut = graph[grid.sources[0]], cuts[grid.name]
            pieces = cut_layer(grid, cut, machines=machines, source=below)
            found[grid.name] = following(pieces, found.get(below.name, ())) if follows_input(cut) else pieces
        else:
            assert stays_with_scores(graph, grid), f"no cut for {grid.name}"
            found[grid.name] = with_scores(grid, found[grid.sources[0]])
    return Ownership(graph, machines, tuple(piece for pieces in found.values() for piece in pieces))


def stays_with_scores(graph: Graph, grid: Grid) -> bool:
    """Returns whether a layer is a loss that can be evaluated in shards, with its scores."""
    return (
        isinstance(grid.layer, Loss)
        and grid.layer.splits_scores
        and not graph[grid.sources[0]].is_placeholder
    )
