"""Which sets of machines are worth trying as the home of a layer.

Few machines: all sets. Many: blocks of one, two, four ... of them, the fastest first, so that machines of one
kind and of one host stay together; of small blocks only the first ones, because the others are like them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, pairwise
from typing import Final

from partita.partitioner.search.task import Task

ALL_SETS: Final = 4
"""Up to so many machines, every set of them is tried."""
BLOCKS: Final = 8
"""Of blocks of one size, so many."""


def groups(task: Task) -> tuple[tuple[int, ...], ...]:
    """Sets of machines, each ascending; one machine first, all of them last."""
    speed = task.speeds
    ranked = sorted(speed, key=lambda m: (-speed[m], m))
    if len(ranked) <= ALL_SETS:
        sizes = range(1, len(ranked) + 1)
        return tuple(found for size in sizes for found in combinations(sorted(ranked), size))
    found = {tuple(sorted(ranked))}
    size = 1
    while size < len(ranked):
        starts = range(0, len(ranked), size)[:BLOCKS]
        found.update(tuple(sorted(ranked[start : start + size])) for start in starts)
        size *= 2
    found.update(tuple(sorted(ranked[:place])) for place in _ends_of_kinds(ranked, speed))
    return tuple(sorted(found, key=lambda group: (len(group), group)))


def _ends_of_kinds(ranked: list[int], speed: Mapping[int, float]) -> list[int]:
    """Where among the ranked machines slower ones begin."""
    return [n for n, (a, b) in enumerate(pairwise(ranked), start=1) if speed[b] < 0.9 * speed[a]][:BLOCKS]
