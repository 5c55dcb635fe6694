"""Devices: where the arrays of a machine lie, and operations on whole arrays there.

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
from partita.engine.parameters.optimizers import Optimizer, Update, UpdateContext, sum_of_squares
from partita.engine.parameters.vector import Vector
from partita.engine.runtime.task import CannotGoOn
from partita.engine.runtime.window import Window
from partita.partitioner.lower.windows import ALIGNMENT


class NoSuchDevice(CannotGoOn):
    """A machine of the plan needs a device that its host does not have."""


class Device:
    """The host's own memory. Another device overrides every method."""

    blocks_fit_caches = True
    """States whether updates are faster in blocks that fit the caches of the machine's threads."""

    is_host = True
    """States whether its arrays are the host's own memory."""

    works_in_calls = True
    """States whether a call's work is done when it returns. Otherwise a sender has to wait for the
    numbers."""

    def memory(self, n_bytes: int) -> Array:
        """Zeros, uint8 `[n_bytes]`, aligned for windows."""
        memory = np.zeros(n_bytes + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        return memory[start : start + n_bytes]

    def placed(self, memory: Array, offset: int, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An array at an offset (bytes) of such memory. bfloat16 is `uint16` to a caller, on any device."""
        n_bytes = math.prod(shape) * dtype.itemsize
        return memory[offset : offset + n_bytes].view(dtype).reshape(shape)

    def zeros(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An array of zeros in memory of its own."""
        return self.placed(self.memory(math.prod(shape) * dtype.itemsize), 0, shape, dtype)

    def window(self, start: int, array: Array, left: int = 0) -> Window:
        """Rows of a buffer, from number `start` (and column `left`) on, in an array of this device."""
        return Window(start, array, left)

    def taken(self, array: Array) -> Array:
        """Moves an array of the host, which nobody else uses any more, to this device."""
        return array

    def given(self, array: Array) -> Array:
        """An array of this device as one of the host, with the numbers written so far."""
        return array

    def copy(self, target: Array, source: Array) -> None:
        """Copies an array into one of the same shape, whose precision may be another."""
        if target.dtype.itemsize == 2:
            downcast_array(source, target)
        else:
            upcast_array(source, target)

    def add(self, target: Array, other: Array) -> None:
        """Adds an array to one of the same shape and dtype, or bfloat16 or float16 to float32."""
        add_array(target, other)

    def sum_of_squares(self, vector: Vector) -> Any:
        """The sum of squares in float64, as a number that can be assigned to an array of this device."""
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
        """Prepares an update, as `Optimizer.bind`; the update returns True while its result is not known.

        A copy in float16, which compiled loops do not have, is written after it.
        """
        if copy is None or copy.dtype != np.float16:
            return optimizer.bind(values, gradient, state, accumulated=accumulated, copy=copy)
        update = optimizer.bind(values, gradient, state, accumulated=accumulated, copy=None)

        def update_and_copy(context: UpdateContext) -> bool:
            finite = update(context)
            self.copy(copy, values)
            return finite

        return update_and_copy

    def updates_were_finite(self) -> bool:
        """Returns whether all updates since the last call were finite that could not report it themselves."""
        return True

    def finish(self) -> None:
        """Waits until everything that was begun is done."""
