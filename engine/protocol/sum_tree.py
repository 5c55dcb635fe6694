"""In which order things that come in any order are added up, so that the sum has the same bits every time.

A sum of floating-point numbers depends on what is added to what. Here that follows from the numbers of the
leaves alone: node (level, i) is node (level - 1, 2 i) plus node (level - 1, 2 i + 1), and a last left child
without a sister is passed up as it is. It must not know what is added, nor where it lies.
"""

from __future__ import annotations

from typing import Final


class SumTree:
    """Leaves 0, 1, 2 ... that come in one by one, in any order, each of them once.

    The sum of a node lies in the place of its first leaf; so the whole sum is in place 0. With one leaf
    missing, or while they come in ascending order, at most one sum of each level waits.
    """

    def __init__(self, leaves: int) -> None:
        """A tree in which nothing has come.

        Args:
            leaves: how many will come, 1 or more.
        """
        assert leaves >= 1, leaves
        self.leaves: Final = leaves
        self.missing = leaves
        self._taken: Final = bytearray(leaves)
        self._waiting: Final[set[tuple[int, int]]] = set()  # (level, i): whole nodes that are in no other yet

    def has(self, leaf: int) -> bool:
        """Whether this leaf has come."""
        return bool(self._taken[leaf])

    @property
    def places(self) -> list[int]:
        """Where sums lie now, ascending: the places in use."""
        return sorted(i << level for level, i in self._waiting)

    def add(self, leaf: int) -> list[tuple[int, int]]:
        """A leaf that has not come before is in its place.

        Returns:
            The sums to be taken now, in this order: (into, of), the number in the place `into` becomes itself
            plus that in the place `of`, which is free then.
        """
        assert not self._taken[leaf], leaf
        self._taken[leaf] = 1
        self.missing -= 1
        sums = []
        level, i, width = 0, leaf, self.leaves
        while width > 1:
            sister = (level, i ^ 1)
            if i ^ 1 < width:
                if sister not in self._waiting:
                    break
                self._waiting.remove(sister)
                left = i & ~1
                sums.append((left << level, left + 1 << level))
            level, i, width = level + 1, i >> 1, width + 1 >> 1
        self._waiting.add((level, i))
        return sums

    def validate(self) -> None:
        """What has come is in exactly one of the sums that wait, and no two of them are sisters. Raises
        AssertionError.
        """
        assert self.missing == self._taken.count(0), (self.missing, self._taken)
        covered = bytearray(self.leaves)
        for level, i in self._waiting:
            assert (level, i ^ 1) not in self._waiting, (level, i)
            for leaf in range(i << level, min(i + 1 << level, self.leaves)):
                covered[leaf] += 1
        assert covered == self._taken, (covered, self._taken)
