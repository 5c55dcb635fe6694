"""Which sets of machines are worth trying as the home of a layer.

Few machines: all sets, in either order of their pieces. Many: blocks of one, two, four ... of them, the
fastest first, so that machines of one kind and of one host stay together; of small blocks only the first
ones, because the others are like them. Where the network has so many different layers that too many pairs of
layouts would have to be looked at, there are fewer blocks of a size, and then fewer sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, pairwise
from typing import Final

from partita.partitioner.search.task import Task

ALL_SETS: Final = 4
"""Up to so many machines, every set of them is tried."""
BLOCKS: Final = ((8, 2), (4, 2), (2, 2), (1, 2), (1, 4), (1, 16), (1, 1 << 30))
"""Of blocks of one size how many, and how much larger the next size is: from many groups to few."""
FEWEST: Final = len(BLOCKS) - 1


def groups(task: Task, *, thinned: int = 0) -> tuple[tuple[int, ...], ...]:
    """Sets of machines, ascending, smaller ones first; of few machines each set the other way round too.

    Args:
        task: whose machines.
        thinned: how often there shall be fewer of them, at most `FEWEST` times.
    """
    speed = task.speeds
    ranked = sorted(speed, key=lambda m: (-speed[m], m))
    if len(ranked) <= ALL_SETS and not thinned:
        sizes = range(1, len(ranked) + 1)
        sets = [found for size in sizes for found in combinations(sorted(ranked), size)]
        return (*sets, *(found[::-1] for found in sets if len(found) > 1))
    blocks, growth = BLOCKS[thinned]
    found, size = {tuple(sorted(ranked))}, 1
    while size < len(ranked):
        starts = range(0, len(ranked), size)[:blocks]
        found.update(tuple(sorted(ranked[start : start + size])) for start in starts)
        size *= growth
    found.update(tuple(sorted(ranked[:place])) for place in _ends_of_kinds(ranked, speed)[:blocks])
    return tuple(sorted(found, key=lambda group: (len(group), group)))


def _ends_of_kinds(ranked: list[int], speed: Mapping[int, float]) -> list[int]:
    """Where among the ranked machines slower ones begin."""
    return [n for n, (a, b) in enumerate(pairwise(ranked), start=1) if speed[b] < 0.9 * speed[a]]
