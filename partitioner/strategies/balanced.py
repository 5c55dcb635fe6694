"""Balances operations: every layer cut over all machines, in proportion to their speed.

A layer with fewer rows than there are machines goes to the least busy ones; so does what cannot be cut. Over
patches, a cut lies where the patches of the layer above it begin, so that the errors of a halo travel in one
direction; but in a deep stack that would drift, so no piece may exceed its share by more than `SLACK`. A loss
that machines can judge each for itself lies where its scores do.
"""

from __future__ import annotations

from itertools import pairwise

from partita.layers.connectivity import Patch
from partita.layers.graph import Graph, Grid
from partita.layers.losses import Loss
from partita.partitioner.cluster import Cluster
from partita.partitioner.cost import slowdown
from partita.partitioner.cuts import Cuts, cut_layer, following, follows_input, with_scores
from partita.partitioner.ownership import Piece, boundaries, flops_of

SLACK = 0.1
"""By what share of its fair rows a piece may be larger, to follow the patches above; or by one row."""


def balanced(graph: Graph, cluster: Cluster, cuts: Cuts) -> tuple[Piece, ...]:
    """Pieces for every layer; `cuts` decides for the layers that it names.

    Raises:
        ValueError: a cut by hand that cannot be.
    """
    speed = {m: machine.flops_per_s * machine.threads for m, machine in enumerate(cluster.machines)}
    busy = dict.fromkeys(speed, 0.0)
    found: dict[str, tuple[Piece, ...]] = {}
    for grid in reversed(
        graph.computed
    ):  # from above, because a cut follows the patches of the layer above it
        if grid.name not in cuts and _stays_with_scores(graph, grid):
            continue
        if grid.name in cuts:
            source = graph[grid.sources[0]]
            pieces = cut_layer(grid, cuts[grid.name], machines=len(cluster), source=source)
        else:
            count = min(len(cluster), grid.n_rows) if grid.layer.cuttable else 1
            chosen = sorted(sorted(speed, key=lambda m: (busy[m] / speed[m], m))[:count])
            fair = _proportional(grid, {m: speed[m] for m in chosen})
            pieces = _aligned(graph, grid, fair, found) or fair
        found[grid.name] = pieces
        for piece in pieces:
            busy[piece.machine] += flops_of(graph, piece, batch=1) * slowdown(grid)
    for grid in graph.computed:
        if grid.name not in found:
            found[grid.name] = with_scores(grid, found[grid.sources[0]])
        elif follows_input(cuts.get(grid.name)):
            found[grid.name] = following(found[grid.name], found.get(grid.sources[0], ()))
    return tuple(piece for grid in graph.computed for piece in found[grid.name])


def _stays_with_scores(graph: Graph, grid: Grid) -> bool:
    return isinstance(grid.layer, Loss) and grid.layer.splits_scores and not graph[grid.sources[0]].is_given


def _proportional(grid: Grid, weights: dict[int, float]) -> tuple[Piece, ...]:
    met = boundaries(weights, grid.n_rows)
    return tuple(Piece(grid.name, met[k], met[k + 1], machine) for k, machine in enumerate(weights))


def _aligned(
    graph: Graph, grid: Grid, fair: tuple[Piece, ...], above: dict[str, tuple[Piece, ...]]
) -> tuple[Piece, ...] | None:
    """The cut where the pieces of the one layer above begin to listen, if that is of patches, and fair."""
    consumers = graph.consumers(grid.name)
    if len(consumers) != 1:
        return None
    consumer = graph[consumers[0][0]]
    patch = consumer.layer.connectivity
    if not isinstance(patch, Patch):
        return None
    pieces = above[consumer.name]
    if [p.machine for p in pieces] != [p.machine for p in fair]:
        return None
    axis = patch.axes(grid.shape)[0]
    met = [0, *(piece.start * axis.stride - axis.before for piece in pieces[1:]), grid.n_rows]
    for (start, stop), piece in zip(pairwise(met), fair, strict=True):
        share = piece.stop - piece.start
        if not 0 < stop - start <= max(share + 1, (1 + SLACK) * share):
            return None
    return tuple(Piece(grid.name, met[k], met[k + 1], piece.machine) for k, piece in enumerate(pieces))
