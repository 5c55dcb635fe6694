"""The cuts of each layer among which the search chooses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

from partita.layers.graph import Grid
from partita.partitioner.assign.cuts import Cut, InputSplit, Replicated, Tiles, Whole
from partita.partitioner.assign.piece import boundaries
from partita.partitioner.search.spread import over
from partita.partitioner.search.task import Task

PEERS: Final = 128
"""Largest group of machines that exchange sums over inputs, each with all others."""

Maker: TypeAlias = Callable[[Task, Grid, tuple[int, ...], Cut], Iterable[Cut]]
"""Makes cuts of one kind from a layer, a group of machines, and the layer's cut by rows over them."""
Choice: TypeAlias = Cut | None
"""A cut; None for a loss that lies with its scores."""


def by_rows(task: Task, grid: Grid, group: tuple[int, ...], rows: Cut) -> Iterator[Cut]:
    """Gives each machine rows in proportion to its speed; one machine gets the whole layer."""
    yield rows


def by_tiles(task: Task, grid: Grid, group: tuple[int, ...], rows: Cut) -> Iterator[Cut]:
    """Cuts a picture into nearly square tiles, one for each machine of one kind."""
    if (
        len(group) < 4
        or grid.tiling_rejection() is not None
        or len({task.cluster.kinds[m] for m in group}) > 1
    ):
        return
    down = next(n for n in range(math.isqrt(len(group)), 0, -1) if len(group) % n == 0)
    for across in dict.fromkeys([(len(group) // down, down), (down, len(group) // down)]):
        if min(across) > 1 and across[0] <= grid.shape[0] and across[1] <= grid.shape[1]:
            yield Tiles(group, across)


def by_inputs(task: Task, grid: Grid, group: tuple[int, ...], rows: Cut) -> Iterator[Cut]:
    """Cuts a dense layer by its inputs, with activations replicated or cut.

    An input of the network has no pieces to follow: machines take equal shares, or shares in proportion to
    speed.
    """
    source = task.graph[grid.sources[0]]
    found: list[tuple[int, ...] | None] = [None]
    if not 2 <= len(group) <= min(source.n_rows, PEERS) or not grid.layer.splits_sum:
        return
    if source.is_placeholder:
        if group != tuple(sorted(group)):
            return
        took = {m: task.layer_s(grid.name, grid.rows, m) for m in group}
        met = boundaries({m: 1.0 / max(seconds, 1e-15) for m, seconds in took.items()}, source.n_rows)
        even = boundaries(dict.fromkeys(group, 1.0), source.n_rows)
        found = [tuple(b - a for a, b in pairwise(some)) for some in dict.fromkeys((met, even))]
    for sizes in found:
        yield InputSplit(group, sizes, replicated=True)
        if grid.n_rows >= len(group):
            yield InputSplit(group, sizes)


def repeated(task: Task, grid: Grid, group: tuple[int, ...], rows: Cut) -> Iterator[Cut]:
    """Replicates a layer with fewer parameters than nodes; no picture, whose copies need all of each other's
    input.
    """
    ascending = group == tuple(sorted(group))
    is_small = sum(parameter.size for parameter in grid.parameters) < grid.n_nodes
    if len(group) > 1 and ascending and grid.replicable and is_small and not grid.is_picture:
        yield Replicated(group)


KINDS: Final[tuple[Maker, ...]] = (by_rows, by_tiles, by_inputs, repeated)
"""All kinds of layouts; another kind of cut joins the search when its maker joins this table."""


def choices(task: Task, groups: Sequence[tuple[int, ...]]) -> dict[str, tuple[Choice, ...]]:
    """Lists the cuts of every layer, each once; a layer cut by hand has one.

    Cuts of one kind stand together, group after group, so that the n-th cuts of two layers are alike.

    Raises:
        ValueError: a cut by hand is impossible.
    """
    found: dict[str, dict[Choice, None]] = {grid.name: {} for grid in task.graph.computed}
    spread_over = [(group, over(task, group)) for group in groups]
    for maker in KINDS:
        for group, cuts in spread_over:
            for grid in task.graph.computed:
                found[grid.name].update(dict.fromkeys(_made(task, grid, group, cuts, maker)))
    return {layer: tuple(cuts) for layer, cuts in found.items()}


def _made(
    task: Task, grid: Grid, group: tuple[int, ...], cuts: Mapping[str, Cut], maker: Maker
) -> Iterable[Choice]:
    if grid.name in task.by_hand:
        return (task.by_hand[grid.name],)
    if grid.name in task.free:
        return maker(task, grid, group, cuts[grid.name])
    if maker is repeated:
        return maker(task, grid, group, Whole(group[0]))
    return (None, Whole(group[0])) if len(group) == 1 else (None,)
