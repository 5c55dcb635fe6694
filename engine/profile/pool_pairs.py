"""Chooses the pairs of machines whose link is measured: all of a few machines, some of many. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Final

MOST_PAIRS: Final = 12
"""Pairs up to which all are measured; of more, a ring of neighbours and a sample."""


@dataclass(frozen=True)
class Pairs:
    """The pairs to measure.

    Args:
        pairs: names of two workers, and names by which the link is known: of hosts, or of kinds.
        left_out: number of pairs that are not measured.
    """

    pairs: tuple[tuple[str, str, str, str], ...]
    left_out: int


def pairs_of(groups: Sequence[Sequence[str]], *, most: int = MOST_PAIRS) -> Pairs:
    """Chooses pairs of workers on different machines.

    Args:
        groups: names of workers, one for each machine; machines of one group are alike and stand for one
            another.
        most: number of pairs up to which all are measured.
    """
    named = {group[0]: group[0] for group in groups}
    inside = [(group[0], group[1], group[0], group[0]) for group in groups if len(group) > 1]
    across = [(a, b, named[a], named[b]) for a, b in combinations(named, 2)]
    if len(inside) + len(across) <= most:
        return Pairs((*inside, *across), 0)
    firsts = list(named)
    ring = {tuple(sorted(pair)) for pair in pairwise([*firsts, firsts[0]])}
    chosen = [pair for pair in across if tuple(sorted(pair[:2])) in ring]
    others = [pair for pair in across if pair not in chosen]
    more = max(most - len(inside) - len(chosen), 0)
    chosen += random.Random(len(firsts)).sample(others, min(more, len(others)))
    return Pairs((*inside, *sorted(chosen)), len(across) - len(chosen))


def groups_of(
    workers: Sequence[str], machines: Mapping[str, str], like: Mapping[str, Sequence[str]]
) -> list[list[str]]:
    """Groups machines that are alike, each by its first worker.

    Args:
        workers: names of all workers, in order.
        machines: label of each worker's machine.
        like: names of workers that are like another one, by its name.

    Raises:
        ValueError: a name is none of a worker, or stands in two groups.
    """
    for name in (*like, *(one for some in like.values() for one in some)):
        if name not in machines:
            raise ValueError(
                f"--like names '{name}', but the pool's workers are {', '.join(sorted(workers))}"
            )
    of = {one: first for first, some in like.items() for one in some}
    for name, first in of.items():
        if first in of or name in like:
            twice = name if name in like else first
            raise ValueError(f"--like names '{twice}' both as a machine to measure and as one like another")
    first_of: dict[str, str] = {}
    for name in workers:
        first_of.setdefault(machines[name], name)
    found: dict[str, list[str]] = {}
    for name in first_of.values():
        found.setdefault(of.get(name, name), []).append(name)
    return [[first, *(name for name in some if name != first)] for first, some in found.items()]
