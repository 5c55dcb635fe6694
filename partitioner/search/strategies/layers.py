"""Whole layers in order, one run of them on each machine, balanced by cost: the usual horizontal cut."""

from __future__ import annotations

from partita.partitioner.search.layers import in_order
from partita.partitioner.search.task import Decision, Task


def layers(task: Task) -> Decision:
    """Places every layer whole, on the machines in their order.

    Raises:
        ValueError: a cut by hand is impossible.
    """
    return Decision(in_order(task, range(len(task.cluster))), task.n_micro_batches)
