"""Sets of machines worth trying for a layer.

Of few machines: all sets, in either order. Of many: blocks of 1, 2, 4 ... machines, the fastest first, so
that machines of one kind and one host stay together; of small blocks only the first, because the others are
alike. For networks with many different layers the list is thinned.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, pairwise
from typing import Final

from partita.partitioner.search.task import Task

ALL_SETS: Final = 4
"""Number of machines up to which every set is tried."""
BLOCKS: Final = ((8, 2), (4, 2), (2, 2), (1, 2), (1, 4), (1, 16), (1, 1 << 30))
"""Number of blocks of a size and growth of the next size, from many groups to few."""
FEWEST: Final = len(BLOCKS) - 1


def groups(task: Task, *, thinned: int = 0) -> tuple[tuple[int, ...], ...]:
    """Lists sets of machines, ascending, smaller first; of few machines also reversed.

    The degree of thinning is at most `FEWEST`.
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
    """Finds the places among ranked machines where slower ones begin."""
    return [n for n, (a, b) in enumerate(pairwise(ranked), start=1) if speed[b] < 0.9 * speed[a]]
