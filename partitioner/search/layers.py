"""Consecutive runs of layers on stages: horizontal cuts, balanced so that the busiest stage is least busy.

A stage is a machine with whole layers, or a group of machines over which each of its layers is spread.
"""

from __future__ import annotations

from collections.abc import Sequence

from partita.layers.graph import Grid
from partita.partitioner.assign.cuts import Cut
from partita.partitioner.search.spread import over
from partita.partitioner.search.task import Task

HALVINGS = 50
"""Bisection steps for the least possible time of the busiest stage."""


def in_order(task: Task) -> dict[str, Cut]:
    """Places whole layers on one machine after the other; cuts by hand stand."""
    return in_stages(task, [(machine,) for machine in range(len(task.cluster))])


def in_stages(task: Task, stages: Sequence[Sequence[int]]) -> dict[str, Cut]:
    """Places runs of layers on one group of machines after the other; cuts by hand stand."""
    took = _seconds_of(task, stages)
    low, high = 0.0, min(sum(seconds) for seconds in took) * (1 + 1e-9)
    best = _filled(took, high)
    for _ in range(HALVINGS if len(stages) > 1 else 0):
        middle = (low + high) / 2
        found = _filled(took, middle)
        if found is None:
            low = middle
        else:
            high, best = middle, found
    assert best is not None, "one stage alone has room for all"
    cuts = {stage: over(task, stages[stage]) for stage in dict.fromkeys(best)}
    return {
        **{layer: cuts[stage][layer] for layer, stage in zip(task.free, best, strict=True)},
        **task.by_hand,
    }


def _seconds_of(task: Task, stages: Sequence[Sequence[int]]) -> list[list[float]]:
    """Prices each layer on each stage; stages of the same kinds of machines cost the same."""

    def layer_s(grid: Grid, cut: Cut) -> float:
        return max(task.layer_s(grid.name, piece.rows, piece.machine) for piece in task.pieces(grid, cut))

    known: dict[Sequence[int], list[float]] = {}
    found = []
    for stage in stages:
        kinds = tuple(stage) if task.by_hand else tuple(task.cluster.kinds[m] for m in stage)
        if kinds not in known:
            cuts = over(task, stage)
            known[kinds] = [layer_s(grid, cuts[layer]) for layer, grid in task.free.items()]
        found.append(known[kinds])
    return found


def _filled(took: Sequence[Sequence[float]], limit_s: float) -> list[int] | None:
    """Fills stages in order up to a limit; returns the stage of each layer, None if some are left."""
    found: list[int] = []
    for stage, seconds in enumerate(took):
        busy = 0.0
        while len(found) < len(seconds) and busy + seconds[len(found)] <= limit_s:
            busy += seconds[len(found)]
            found.append(stage)
    return found if len(found) == len(took[0]) else None
