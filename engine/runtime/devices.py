"""Where the arrays of a machine lie, and what is done there to whole arrays.

A CPU works in the host's own memory, and nothing is ever copied for it. A GPU (`torch_device`) has memory of
its own, in which an array is a tensor of torch: it is sliced, reshaped and assigned to like one of NumPy,
and only kernels and this abstraction look any closer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import add_array, downcast_array, upcast_array
from partita.engine.parameters.optimizers import Optimizer, Update, sum_of_squares
from partita.engine.parameters.vector import Vector
from partita.engine.runtime.task import CannotGoOn
from partita.engine.runtime.window import Window
from partita.partitioner.lower.windows import ALIGNMENT


class NoSuchDevice(CannotGoOn):
    """A machine wants a device that its host does not have."""


class Device:
    """The host's own memory. Another device overrides every method."""

    blocks_fit_caches = True
    """Whether a layer had better learn in blocks that fit the caches of the machine's threads."""

    works_in_calls = True
    """Whether what a call does is done when it returns. Otherwise, who sends it has to wait for it."""

    def memory(self, n_bytes: int) -> Array:
        """Zeros, uint8 `[n_bytes]`, that begin where windows may."""
        memory = np.zeros(n_bytes + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        return memory[start : start + n_bytes]

    def placed(self, memory: Array, offset: int, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An array at a place of such memory, in bytes. bfloat16 is `uint16` to a caller, on any device."""
        n_bytes = math.prod(shape) * dtype.itemsize
        return memory[offset : offset + n_bytes].view(dtype).reshape(shape)

    def zeros(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An array of its own."""
        return self.placed(self.memory(math.prod(shape) * dtype.itemsize), 0, shape, dtype)

    def window(self, start: int, array: Array, left: int = 0) -> Window:
        """Rows of a buffer, from number `start` (and column `left`) on, in an array of this device."""
        return Window(start, array, left)

    def taken(self, array: Array) -> Array:
        """An array of the host's, which nobody else uses any more, as one of this device."""
        return array

    def given(self, array: Array) -> Array:
        """An array of this device as one of the host's, with what has been written there by now."""
        return array

    def copy(self, target: Array, source: Array) -> None:
        """Writes numbers into an array of the same shape, whose precision may be another."""
        if target.dtype == np.uint16:
            downcast_array(source, target)
        else:
            upcast_array(source, target)

    def add(self, target: Array, other: Array) -> None:
        """Adds numbers to others of the same shape and type, or bfloat16 to float32."""
        add_array(target, other)

    def sum_of_squares(self, vector: Vector) -> Any:
        """In float64; a number that an array of this device can be assigned."""
        return sum_of_squares(vector)

    def bind(
        self,
        optimizer: Optimizer,
        values: Vector,
        gradient: Array,
        state: Mapping[str, Vector],
        *,
        accumulated: Vector | None,
        copy: Array | None,
    ) -> Update:
        """Prepares an update, as `Optimizer.bind`; one that cannot say at once whether all was finite says
        yes.
        """
        return optimizer.bind(values, gradient, state, accumulated=accumulated, copy=copy)

    def updates_were_finite(self) -> bool:
        """Whether all were that could not say so themselves, since it was last asked."""
        return True

    def finish(self) -> None:
        """Returns when everything that was begun is done."""
