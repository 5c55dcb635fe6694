"""Whole layers in order: the usual horizontal cut, so balanced that the busiest machine is the least busy."""

from __future__ import annotations

from collections.abc import Sequence

from partita.layers.graph import Grid
from partita.partitioner.cuts import Cut, Whole
from partita.partitioner.search.task import Task
from partita.partitioner.settle import stays_with_scores

HALVINGS = 50
"""Of the interval in which the least possible time of the busiest machine lies."""


def in_order(task: Task, machines: Sequence[int]) -> dict[str, Cut]:
    """Runs of layers on one machine after the other, in this order; cuts by hand stand."""
    graph = task.graph
    free = [
        grid
        for grid in graph.computed
        if grid.name not in task.by_hand and not stays_with_scores(graph, grid)
    ]
    took = {m: [task.layer_s(grid.name, (0, grid.n_rows), m) for grid in free] for m in machines}
    low, high = 0.0, min(sum(seconds) for seconds in took.values()) * (1 + 1e-9)
    best = _filled(free, took, high) or {}
    for _ in range(HALVINGS if len(machines) > 1 else 0):
        middle = (low + high) / 2
        found = _filled(free, took, middle)
        if found is None:
            low = middle
        else:
            high, best = middle, found
    return {**best, **task.by_hand}


def _filled(free: Sequence[Grid], took: dict[int, list[float]], limit_s: float) -> dict[str, Cut] | None:
    """Each machine takes layers until one more would be too much; None if some are left."""
    found: dict[str, Cut] = {}
    n = 0
    for machine, seconds in took.items():
        busy = 0.0
        while n < len(free) and busy + seconds[n] <= limit_s:
            found[free[n].name] = Whole(machine)
            busy += seconds[n]
            n += 1
    return found if n == len(free) else None
