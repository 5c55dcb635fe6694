"""A fixed order of sums for terms that arrive in any order, so that the sum always has the same bits.

A floating-point sum depends on the order of additions. Here it follows from the numbers of the leaves alone:
node (level, i) is node (level - 1, 2 i) plus node (level - 1, 2 i + 1), and a last left child without a
sibling moves up unchanged. The tree knows neither the terms nor their memory.
"""

from __future__ import annotations

from typing import Final


class SumTree:
    """Leaves 0, 1, 2 ... that arrive one by one, in any order, each of them once.

    The sum of a node lies in the place of its first leaf; so the whole sum is in place 0. With one leaf
    missing, or while they arrive in ascending order, at most one sum of each level waits.
    """

    def __init__(self, leaves: int) -> None:
        """Creates a tree without terms.

        Args:
            leaves: their number, 1 or more.
        """
        assert leaves >= 1, leaves
        self.leaves: Final = leaves
        self.missing = leaves
        self._taken: Final = bytearray(leaves)
        self._waiting: Final[set[tuple[int, int]]] = (
            set()
        )  # (level, i): complete nodes that are in no other yet

    def has(self, leaf: int) -> bool:
        """Returns whether this leaf has arrived."""
        return bool(self._taken[leaf])

    def add(self, leaf: int) -> list[tuple[int, int]]:
        """Adds a leaf that is in its place now.

        Returns:
            The sums to compute, in this order: (into, of) adds the number in the place `of` to that in the
            place `into`, and frees `of`.
        """
        assert not self._taken[leaf], leaf
        self._taken[leaf] = 1
        self.missing -= 1
        sums = []
        level, i, width = 0, leaf, self.leaves
        while width > 1:
            sibling = (level, i ^ 1)
            if i ^ 1 < width:
                if sibling not in self._waiting:
                    break
                self._waiting.remove(sibling)
                left = i & ~1
                sums.append((left << level, left + 1 << level))
            level, i, width = level + 1, i >> 1, width + 1 >> 1
        self._waiting.add((level, i))
        return sums

    def validate(self) -> None:
        """Checks that each leaf is in one waiting sum, and no two are siblings. Raises AssertionError."""
        assert self.missing == self._taken.count(0), (self.missing, self._taken)
        covered = bytearray(self.leaves)
        for level, i in self._waiting:
            assert (level, i ^ 1) not in self._waiting, (level, i)
            for leaf in range(i << level, min(i + 1 << level, self.leaves)):
                covered[leaf] += 1
        assert covered == self._taken, (covered, self._taken)
