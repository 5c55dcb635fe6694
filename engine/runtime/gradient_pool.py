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
    """Gradients by machine and work unit. Used by the host's thread alone."""

    def __init__(self, sizes: Mapping[int, int], dtype: npt.DTypeLike) -> None:
        """An empty pool; `sizes` are the numbers that each machine has on this shard."""
        self._sizes, self._dtype = dict(sizes), np.dtype(dtype)
        self._used: dict[tuple[int, int], Vector] = {}
        self._free: dict[int, list[Vector]] = {machine: [] for machine in sizes}

    def __len__(self) -> int:
        """The number of arrays in use."""
        return len(self._used)

    def store(self, machine: int, unit: int, payload: Payload, beside: int | None = None) -> None:
        """Copies the numbers of a payload, or adds them to a gradient; releases it. They may be infinite."""
        if beside is None:
            free = self._free[machine]
            numbers = free.pop() if free else np.empty(self._sizes[machine], self._dtype)
            payload.copy_into(numbers)
        else:
            numbers = self._used.pop((machine, beside))
            with np.errstate(all="ignore"):
                payload.add_into(numbers)
            unit = min(unit, beside)
        payload.release()
        self._used[machine, unit] = numbers

    def add(self, machine: int, into: int, of: int) -> None:
        """Adds `of` to `into`, which takes part in later sums; numbers may be infinite."""
        numbers, more = self._used[machine, into], self._used.pop((machine, of))
        with np.errstate(all="ignore"):
            np.add(numbers, more, out=numbers)
        self._reuse(machine, more)

    def move(self, machine: int, unit: int, out: Vector) -> None:
        """Copies a gradient to `out`, and frees it."""
        numbers = self._used.pop((machine, unit))
        np.copyto(out, numbers)
        self._reuse(machine, numbers)

    def drop(self) -> None:
        """Frees the memory of all gradients."""
        for (machine, _), numbers in self._used.items():
            self._reuse(machine, numbers)
        self._used.clear()

    def _reuse(self, machine: int, numbers: Vector) -> None:
        if len(self._free[machine]) < _MOST_FREE:
            self._free[machine].append(numbers)
