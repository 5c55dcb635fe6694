"""Balanced operations: every layer cut over all machines, in proportion to their speed."""

from __future__ import annotations

from partita.layers.graph import Grid
from partita.partitioner.assign.piece import row_flops
from partita.partitioner.search.spread import spread
from partita.partitioner.search.task import Decision, Task


def balanced(task: Task) -> Decision:
    """Cuts every layer by operations alone; the cost of messages does not matter.

    Raises:
        ValueError: a cut by hand is impossible.
    """
    speed = [m.flops_per_s * m.threads * m.speed for m in task.cluster.machines]

    def row_s(grid: Grid, machine: int) -> float:
        return row_flops(grid, batch=1) * grid.layer.slowdown / speed[machine]

    n_machines = len(task.cluster)
    cuts = spread(task.graph, range(n_machines), task.by_hand, row_s, n_machines=n_machines)
    return Decision(cuts, task.n_micro_batches)
