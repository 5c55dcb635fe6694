"""The contributions to an evaluation on one shard: for each segment and machine a tree of work units.

It must not know numbers, nor who computed them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from itertools import accumulate
from typing import Final

from partita.engine.protocol.commands import Evaluate
from partita.engine.protocol.sum_tree import SumTree


class Evaluation:
    """The evaluation under way. Units are numbered through all segments, as by `work_units_of`."""

    def __init__(self, evaluate: Evaluate, length: int, machines: Collection[int]) -> None:
        """Creates an evaluation without contributions.

        Args:
            evaluate: the operation.
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
        """Vectors without contributors: of segments without portions, or all if no machine has numbers."""
        return [vector for vector, trees in zip(self._vectors, self._trees, strict=True) if not trees]

    def has(self, machine: int, unit: int) -> bool:
        """Returns whether the machine has contributed this work unit."""
        segment = bisect_right(self._starts, unit) - 1
        return self._trees[segment][machine].has(unit - self._starts[segment])

    def add(self, machine: int, unit: int) -> list[tuple[int, int]]:
        """Adds a contribution. Returns the sums to compute now: (into, of), numbers of work units."""
        segment = bisect_right(self._starts, unit) - 1
        start = self._starts[segment]
        self.missing -= 1
        sums = self._trees[segment][machine].add(unit - start)
        return [(start + into, start + of) for into, of in sums]

    @property
    def vectors(self) -> tuple[str, ...]:
        """Vectors that sums are for."""
        return tuple(dict.fromkeys(v for v, trees in zip(self._vectors, self._trees, strict=True) if trees))

    def sums(self) -> list[tuple[int, int, str]]:
        """Returns the place of each complete sum: (machine, work unit, vector that it is for)."""
        segments = zip(self._starts, self._vectors, self._trees, strict=False)
        return [(machine, start, vector) for start, vector, trees in segments for machine in trees]

    def missing_ranges(self) -> tuple[tuple[int, int], ...]:
        """Returns the incomplete work units as ascending ranges `[start, stop)`."""
        ranges: list[tuple[int, int]] = []
        for unit in range(self.units):
            if all(self.has(machine, unit) for machine in self._machines):
                continue
            start = ranges.pop()[0] if ranges and ranges[-1][1] == unit else unit
            ranges.append((start, unit + 1))
        return tuple(ranges)

    def validate(self) -> None:
        """Checks that the evaluation is incomplete as its trees are. Raises AssertionError."""
        trees = [tree for trees in self._trees for tree in trees.values()]
        for tree in trees:
            tree.validate()
        assert self.missing == sum(tree.missing for tree in trees) > 0, self.missing
