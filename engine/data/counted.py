"""Counted random bits and permutations for data: functions of a seed and numbers, with no state.

The bits of an example are the same whichever worker of whichever host draws them, and in whatever order. The
mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood, *Fast splittable pseudorandom number
generators*, OOPSLA 2014); permutations are Feistel networks (Luby and Rackoff, *How to construct pseudorandom
permutations*, 1988) with cycle walking (Black and Rogaway, *Ciphers with arbitrary finite domains*, 2002).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint64]

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_ROUNDS: Final = 6


def mixed(bits: Any) -> Bits:
    """Returns 64 bits for each number, of which each depends on all bits of the number."""
    with np.errstate(over="ignore"):
        z = np.asarray(bits, np.uint64) + _GAMMA
        z = (z ^ (z >> np.uint64(30))) * _FIRST
        z = (z ^ (z >> np.uint64(27))) * _SECOND
        return np.asarray(z ^ (z >> np.uint64(31)), np.uint64)


def bits_of(*numbers: Any) -> Bits:
    """Returns 64 random bits for numbers below 2 ** 64, or for arrays of them that broadcast."""
    found: Bits = np.asarray(0, np.uint64)
    for number in numbers:
        found = mixed(found ^ np.asarray(number).astype(np.uint64))
    return found


class Permutation:
    """An order of the numbers below `n`, of which any part is computed by itself.

    It takes no memory: the order of 10 ** 9 examples is six keys.
    """

    def __init__(self, n: int, *key: int) -> None:
        """Determines the order of `n` numbers by a key: equal keys have equal orders."""
        self.n: Final = n
        self._half = np.uint64(max((n - 1).bit_length() + 1, 2) // 2)
        self._mask = np.uint64((1 << int(self._half)) - 1)
        self._keys = [bits_of(*key, n, number) for number in range(_ROUNDS)]

    def at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the numbers at some places in the order, `[count]`, int64."""
        found = self._once(places.astype(np.uint64))
        while (beyond := np.flatnonzero(found >= self.n)).size:  # fewer than 3 of 4, each time
            found[beyond] = self._once(found[beyond])
        return found.astype(np.int64)

    def _once(self, numbers: Bits) -> Bits:
        left, right = numbers >> self._half, numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (mixed(right ^ key) & self._mask)
        return (left << self._half) | right
