"""Spreading a network over a group of machines: every layer over all of them, in proportion to their speeds.

A layer with fewer rows than machines goes to the least busy ones, and so does a layer that cannot be cut.
A layer whose weight has the rows of its input is cut by these. Over patches, a cut lies where the patches of
the consumer begin, so that gradients of a halo travel in one direction; against drift in a deep stack, no
piece may exceed its share by more than `SLACK`. A loss that machines can evaluate separately lies with its
scores; cuts by hand stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

from partita.layers.connectivity import Patch
from partita.layers.graph import Graph, Grid
from partita.partitioner.assign.cuts import Cut, InputSplit, RowSplit, Whole
from partita.partitioner.assign.piece import boundaries, row_flops, rows_worth
from partita.partitioner.search.task import Task

SLACK: Final = 0.1
"""Share by which a piece may exceed its fair rows to follow the patches above; at least one row."""

RowSeconds: TypeAlias = Callable[[Grid, int], float]
"""Seconds of a row of a layer on a machine."""


def over(task: Task, group: Sequence[int]) -> Mapping[str, Cut]:
    """Spreads the network over a group of machines by predicted times, once for each group."""
    found = task.spreads.get(tuple(group))
    if found is None:
        found = task.spreads[tuple(group)] = spread(task, group, task.row_s)
    return found


def balanced(task: Task) -> dict[str, Cut]:
    """Spreads the network over all machines by operations alone; the cost of messages does not matter."""
    speed = [m.flops_per_s * m.threads * m.speed for m in task.cluster.machines]
    return spread(
        task,
        range(len(speed)),
        lambda grid, machine: row_flops(grid, batch=1) * grid.layer.slowdown / speed[machine],
    )


def equal(task: Task) -> dict[str, Cut]:
    """Cuts every layer into equal pieces over all machines, as far as it has rows."""
    found = dict(task.by_hand)
    for layer, grid in task.free.items():
        count = min(len(task.cluster), grid.n_rows) if grid.layer.cuttable else 1
        found[layer] = Whole(0) if count == 1 else _cut(task.graph, grid, tuple(range(count)), None)
    return found


def _cut(graph: Graph, grid: Grid, machines: tuple[int, ...], sizes: tuple[int, ...] | None) -> Cut:
    """Cuts a layer by its rows, of these sizes; by its inputs where that leaves its weight in its places."""
    if grid.has_input_rows and len(machines) <= graph[grid.sources[0]].n_rows:
        return InputSplit(machines)
    return RowSplit(machines, sizes)


def spread(task: Task, machines: Iterable[int], row_s: RowSeconds) -> dict[str, Cut]:
    """Cuts every layer but the losses that stay with their scores.

    Raises:
        ValueError: a cut by hand is impossible.
    """
    busy = dict.fromkeys(machines, 0.0)
    found: dict[str, Cut] = {}
    for grid in reversed(task.graph.computed):  # a cut follows the patches of its consumer
        if grid.name in task.by_hand:
            found[grid.name] = task.by_hand[grid.name]
            for piece in task.pieces(grid, found[grid.name]):
                if piece.machine in busy:
                    busy[piece.machine] += row_s(grid, piece.machine) * rows_worth(task.graph, piece)
        elif grid.name in task.free:
            took = {m: row_s(grid, m) for m in busy}
            sizes = _shares(task.graph, grid, busy, took, found)
            many = _cut(task.graph, grid, tuple(sizes), tuple(sizes.values()))
            found[grid.name] = Whole(next(iter(sizes))) if len(sizes) == 1 else many
            for machine, size in sizes.items():
                busy[machine] += took[machine] * size
    return found


def _shares(
    graph: Graph, grid: Grid, busy: Mapping[int, float], took: Mapping[int, float], above: Mapping[str, Cut]
) -> dict[int, int]:
    """Divides rows among machines; those without rows are left out."""
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
    """Aligns the cut with the patches of the only consumer, if shares stay fair."""
    consumers = graph.consumers(grid.name)
    if len(consumers) != 1:
        return None
    consumer = graph[consumers[0][0]]
    patch, cut = consumer.connectivity, above.get(consumer.name)
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
