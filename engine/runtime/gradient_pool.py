"""Gradients on their way into a sum: arrays that payloads are copied into, added to one another, reused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from partita.engine.parameters.vector import Vector
from partita.engine.transport.payload import Payload

_MOST_FREE: Final = 8
"""So many arrays of a machine stay for the next gradients; a sum in order needs hardly more."""


class GradientPool:
    """Of the machines that have numbers on a shard, known by the numbers of their work units."""

    def __init__(self, sizes: Mapping[int, int], dtype: npt.DTypeLike) -> None:
        """Nothing is kept.

        Args:
            sizes: for each machine, how many numbers it has here.
            dtype: of all of them.
        """
        self._sizes, self._dtype = dict(sizes), np.dtype(dtype)
        self._kept: dict[tuple[int, int], Vector] = {}
        self._free: dict[int, list[Vector]] = {machine: [] for machine in sizes}

    def __len__(self) -> int:
        """How many arrays are in use."""
        return len(self._kept)

    def keep(self, machine: int, unit: int, payload: Payload) -> None:
        """Takes the numbers of a payload, and releases it."""
        free = self._free[machine]
        numbers = free.pop() if free else np.empty(self._sizes[machine], self._dtype)
        payload.copy_into(numbers)
        payload.release()
        self._kept[machine, unit] = numbers

    def join(self, machine: int, into: int, of: int) -> None:
        """`into` becomes `into + of`; what has run away stays so, and nothing is said."""
        numbers, more = self._kept[machine, into], self._kept.pop((machine, of))
        with np.errstate(all="ignore"):
            np.add(numbers, more, out=numbers)
        self._reuse(machine, more)

    def move(self, machine: int, unit: int, out: Vector) -> None:
        """The numbers are wanted in `out`, and here no more."""
        numbers = self._kept.pop((machine, unit))
        np.copyto(out, numbers)
        self._reuse(machine, numbers)

    def drop(self) -> None:
        """Nothing that is kept is wanted."""
        for (machine, _), numbers in self._kept.items():
            self._reuse(machine, numbers)
        self._kept.clear()

    def _reuse(self, machine: int, numbers: Vector) -> None:
        if len(self._free[machine]) < _MOST_FREE:
            self._free[machine].append(numbers)
