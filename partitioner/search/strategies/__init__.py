"""Strategies, one a file: each takes a task and gives a cut for every layer; cuts by hand stand."""

from collections.abc import Callable

from partita.partitioner.search.strategies.automatic import automatic
from partita.partitioner.search.strategies.balanced import balanced
from partita.partitioner.search.strategies.layers import layers
from partita.partitioner.search.task import Decision, Task

STRATEGIES: dict[str, Callable[[Task], Decision]] = {
    "automatic": automatic,
    "balanced": balanced,
    "layers": layers,
}
"""Strategies by the names that `partition` takes."""

__all__ = ["STRATEGIES", "automatic", "balanced", "layers"]
