"""A network spread over a group of machines: every layer cut over all of them, in proportion to what they do.

A layer with fewer rows than there are machines goes to the least busy ones; so does what cannot be cut. Over
patches, a cut lies where the patches of the layer above it begin, so that the errors of a halo travel in one
direction; but in a deep stack that would drift, so no piece may exceed its share by more than `SLACK`. A loss
that machines can judge each for itself lies where its scores do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

from partita.layers.connectivity import Patch
from partita.layers.graph import Graph, Grid
from partita.partitioner.assign.assign import stays_with_scores
from partita.partitioner.assign.cuts import Cut, Cuts, RowSplit, Whole, cut_layer
from partita.partitioner.assign.piece import boundaries, rows_worth

SLACK: Final = 0.1
"""By what share of its fair rows a piece may be larger, to follow the patches above; or by one row."""

RowSeconds: TypeAlias = Callable[[Grid, int], float]
"""Seconds of a row of a layer on a machine."""


def spread(
    graph: Graph, machines: Iterable[int], by_hand: Cuts, row_s: RowSeconds, *, n_machines: int
) -> dict[str, Cut]:
    """A cut for every layer but the losses that stay with their scores.

    Args:
        graph: the network.
        machines: over which, in the order of their pieces.
        by_hand: cuts that stand.
        row_s: what a row takes.
        n_machines: of the whole cluster.

    Raises:
        ValueError: a cut by hand that cannot be.
    """
    busy = dict.fromkeys(machines, 0.0)
    found: dict[str, Cut] = {}
    for grid in reversed(graph.computed):  # from above, because a cut follows the patches above it
        if grid.name in by_hand:
            found[grid.name] = by_hand[grid.name]
            below = graph[grid.sources[0]]
            for piece in cut_layer(grid, by_hand[grid.name], machines=n_machines, source=below):
                if piece.machine in busy:
                    busy[piece.machine] += row_s(grid, piece.machine) * rows_worth(graph, piece)
            continue
        if stays_with_scores(graph, grid):
            continue
        took = {m: row_s(grid, m) for m in busy}
        sizes = _shares(graph, grid, busy, took, found)
        found[grid.name] = (
            Whole(next(iter(sizes))) if len(sizes) == 1 else RowSplit(tuple(sizes), tuple(sizes.values()))
        )
        for machine, size in sizes.items():
            busy[machine] += took[machine] * size
    return found


def _shares(
    graph: Graph, grid: Grid, busy: Mapping[int, float], took: Mapping[int, float], above: Mapping[str, Cut]
) -> dict[int, int]:
    """How many rows each machine gets; those that get none are left out."""
    count = min(len(busy), grid.n_rows) if grid.layer.cuttable else 1
    chosen = list(busy)
    if count < len(chosen):
        idle = set(sorted(busy, key=lambda m: (busy[m] + took[m], m))[:count])
        chosen = [m for m in busy if m in idle]
    met = boundaries({m: 1.0 / max(took[m], 1e-15) for m in chosen}, grid.n_rows)
    fair = {m: met[k + 1] - met[k] for k, m in enumerate(chosen)}
    return _aligned(graph, grid, fair, above) or fair


def _aligned(
    graph: Graph, grid: Grid, fair: dict[int, int], above: Mapping[str, Cut]
) -> dict[int, int] | None:
    """The cut where the pieces of the one layer above begin to listen, if that is of patches, and fair."""
    consumers = graph.consumers(grid.name)
    if len(consumers) != 1:
        return None
    consumer = graph[consumers[0][0]]
    patch, cut = consumer.layer.connectivity, above.get(consumer.name)
    if not isinstance(patch, Patch) or not isinstance(cut, RowSplit) or cut.machines != tuple(fair):
        return None
    upper = cut.sizes or ()
    axis = patch.axes(grid.shape)[0]
    starts = list(accumulate(upper))[:-1]
    met = [0, *(start * axis.stride - axis.before for start in starts), grid.n_rows]
    sizes = [stop - start for start, stop in pairwise(met)]
    if len(sizes) != len(fair):
        return None
    for size, share in zip(sizes, fair.values(), strict=True):
        if not 0 < size <= max(share + 1, (1 + SLACK) * share):
            return None
    return dict(zip(fair, sizes, strict=True))
