"""What has come of an evaluation: for each segment and machine a tree of work units.

It must not know numbers, nor who computed what.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from itertools import accumulate
from typing import Final

from partita.engine.protocol.commands import Evaluate
from partita.engine.protocol.sum_tree import SumTree


class Evaluation:
    """Of one shard. Work units are numbered through all segments, as `stretches_of` has them."""

    def __init__(self, evaluate: Evaluate, length: int, machines: Collection[int]) -> None:
        """Nothing has come.

        Args:
            evaluate: what is asked.
            length: portions in a work unit.
            machines: those that have numbers on the shard.
        """
        counts = [-(-segment.count // length) for segment in evaluate.segments]
        self.units: Final = sum(counts)
        self.missing = self.units * len(machines)
        self._machines: Final = machines
        self._starts: Final = [0, *accumulate(counts)]  # the first work unit of each segment, and the end
        self._vectors: Final = [segment.vector for segment in evaluate.segments]
        self._trees: Final = [{m: SumTree(n) for m in machines} if n else {} for n in counts]

    @property
    def empty(self) -> list[str]:
        """The vectors to which nobody contributes: segments of no portions, and all in a shard of nobody."""
        return [vector for vector, trees in zip(self._vectors, self._trees, strict=True) if not trees]

    def has(self, machine: int, unit: int) -> bool:
        """Whether this work unit of the machine has come."""
        segment = bisect_right(self._starts, unit) - 1
        return self._trees[segment][machine].has(unit - self._starts[segment])

    def add(self, machine: int, unit: int) -> list[tuple[int, int]]:
        """It comes; returns the sums to be taken now, (into, of) by the numbers of work units."""
        segment = bisect_right(self._starts, unit) - 1
        start = self._starts[segment]
        self.missing -= 1
        sums = self._trees[segment][machine].add(unit - start)
        return [(start + into, start + of) for into, of in sums]

    def sums(self) -> list[tuple[int, int, str]]:
        """Where all sums are, once everything has come: (machine, work unit, vector that it is for)."""
        segments = zip(self._starts, self._vectors, self._trees, strict=False)
        return [(machine, start, vector) for start, vector, trees in segments for machine in trees]

    def missing_ranges(self) -> tuple[tuple[int, int], ...]:
        """Work units that a machine has not contributed, as ascending ranges `[start, stop)`."""
        ranges: list[tuple[int, int]] = []
        for unit in range(self.units):
            if all(self.has(machine, unit) for machine in self._machines):
                continue
            start = ranges.pop()[0] if ranges and ranges[-1][1] == unit else unit
            ranges.append((start, unit + 1))
        return tuple(ranges)

    def validate(self) -> None:
        """One that is under way misses something, and its trees say what. Raises AssertionError."""
        trees = [tree for trees in self._trees for tree in trees.values()]
        for tree in trees:
            tree.validate()
        assert self.missing == sum(tree.missing for tree in trees) > 0, self.missing
