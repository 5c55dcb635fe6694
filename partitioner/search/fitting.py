"""Suggestions when no plan fits into memory: tries plans that spread memory evenly."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice, takewhile
from typing import Final

from partita.layers.graph import Grid
from partita.layers.text import counted, readable_bytes
from partita.partitioner.assign.cuts import Cut, Cuts
from partita.partitioner.cluster.cluster import Cluster, Machine
from partita.partitioner.ir.sizes import PRECISIONS
from partita.partitioner.search.additive import Additive
from partita.partitioner.search.layers import in_order
from partita.partitioner.search.spread import over, spread
from partita.partitioner.search.task import Task

MOST_MACHINES: Final = 64
"""Largest number of machines tried."""
LARGEST: Final = 500_000
"""Plans of more instructions are not tried: writing their programs would take too long."""
NO_LIMIT: Final = 1 << 60
"""Bytes of a machine without a limit."""
VECTORS: Final = 5
"""Vectors of parameters: themselves, gradients accumulated and in flight, optimizer's state, a reserve."""


def by_memory(task: Task) -> dict[str, Cut]:
    """Spreads every layer over all machines in proportion to their memory."""
    sizes = task.costs.sizes

    def row_share(grid: Grid, machine: int) -> float:
        parameters = sum(p.size for p in grid.parameters) / grid.n_rows
        n_bytes = VECTORS * parameters * sizes.master_bytes
        n_bytes += 2 * grid.nodes_per_row * task.batch * PRECISIONS[task.precision]
        return n_bytes / task.limits.get(machine, NO_LIMIT)

    return spread(task, range(len(task.cluster)), row_share)


def fits(task: Task) -> bool:
    """Returns whether one of a few plans fits."""
    if len(task.limits) == len(task.cluster) and _least_bytes(task) > sum(task.limits.values()):
        return False
    additive = Additive(task)
    return any(excess_bytes(task, cuts) == 0 for cuts in _tried(task) if additive.size(cuts) <= LARGEST)


def excess_bytes(task: Task, cuts: Cuts) -> int:
    """Sums the bytes by which parts exceed their machines' memory."""
    plan = task.plan(cuts)
    return sum(max(plan.memory_bytes(m) - limit, 0) for m, limit in task.limits.items())


def what_would_fit(task: Task, strategy: str) -> str:
    """Ends a sentence: another strategy, more machines, a smaller batch, or a shorter precision."""
    if strategy != "automatic" and fits(task):
        return "the strategy 'automatic' finds a plan that fits"
    found = [*_more_machines(task), *_smaller_batch(task), *_other_precision(task)]
    if not found:
        return (
            f"neither {MOST_MACHINES} machines nor batch 1 nor another precision would do; "
            "use machines with more memory"
        )
    return f"{', or '.join(found)} would do"


def _least_bytes(task: Task) -> int:
    """Sums parameter vectors and all activations, once."""
    states = sum(grid.n_nodes for grid in task.graph.computed) * PRECISIONS[task.precision] * task.batch
    vectors = (VECTORS - 1) * task.graph.n_parameters * task.costs.sizes.master_bytes
    return (vectors if task.train else vectors // (VECTORS - 1)) + states


def _tried(task: Task) -> Iterator[Cuts]:
    machines = range(len(task.cluster))
    largest = max(machines, key=lambda m: task.limits.get(m, NO_LIMIT))
    yield over(task, (largest,))
    yield by_memory(task)
    yield over(task, machines)
    yield in_order(task)


def _more_machines(task: Task) -> Iterator[str]:
    """Finds the least number that fits, by doubling and bisection."""
    machines = task.cluster.machines
    like = max(machines, key=lambda machine: machine.memory_bytes or 0)
    low, high = len(machines), min(2 * len(machines), MOST_MACHINES)
    if low >= high:
        return

    def suffice(size: int) -> bool:
        return fits(replace(task, cluster=_enlarged(task.cluster, like, size)))

    while not suffice(high):
        if high == MOST_MACHINES:
            return
        low, high = high, min(2 * high, MOST_MACHINES)
    least = bisect_left(range(low + 1, high), True, key=suffice) + low + 1
    alike = len({machine.memory_bytes for machine in machines}) == 1
    found = counted(least, "machine") if alike else counted(least - len(machines), "more machine")
    yield f"{found} of {readable_bytes(like.memory_bytes or 0)}"


def _enlarged(cluster: Cluster, like: Machine, size: int) -> Cluster:
    names = {machine.name for machine in cluster.machines}
    fresh = (name for n in range(10 * size) if (name := f"{like.name}+{n}") not in names)
    added = [replace(like, name=next(fresh), host="") for _ in range(size - len(cluster))]
    return replace(cluster, machines=(*cluster.machines, *added))


def _smaller_batch(task: Task) -> Iterator[str]:
    halves = takewhile(bool, (task.batch >> n for n in count(1)))
    yield from islice((f"batch {n}" for n in halves if fits(replace(task, batch=n))), 1)


def _other_precision(task: Task) -> Iterator[str]:
    shorter = {"float64": ("float32", "bfloat16"), "float32": ("bfloat16",)}.get(task.precision, ())
    yield from islice((name for name in shorter if fits(replace(task, precision=name))), 1)
