"""Norms of what an optimizer will do with a gradient, before it does it: see `Optimizer.measured`.

The update is made on copies of the values and the state, block by block, so that the state changes once, in
the update itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from partita.engine.parameters.optimizers import Optimizer, UpdateContext
from partita.engine.parameters.optimizers.update_loop import Stored
from partita.engine.parameters.vector import Vector

_IN_CACHE: Final = 1 << 16
"""Numbers of a block, which stay in a cache with their state."""


class Directions:
    """Sums of squares of the directions of an optimizer, for ranges of some vectors."""

    def __init__(
        self,
        optimizer: Optimizer,
        values: Vector,
        state: Mapping[str, Vector],
        *,
        device: Any,
        dtype: npt.DTypeLike,
    ) -> None:
        """Takes vectors that change, and keeps scratch of one block.

        Args:
            optimizer: replaces values by directions.
            values: `[n]`, the parameters.
            state: `[n]` each, of the optimizer; read, and not changed.
            device: that has the vectors.
            dtype: of the vectors.
        """
        self._optimizer, self._values, self._state, self._device = optimizer, values, state, device
        self._scratch = {name: device.zeros((_IN_CACHE,), np.dtype(dtype)) for name in ("", *state)}

    def bind(self, span: slice, gradient: Stored) -> Callable[[UpdateContext], Any]:
        """Prepares the sum of squares of the direction of a range; `gradient` is read at every call."""
        starts = range(span.start, span.stop, _IN_CACHE)
        blocks = [slice(start, min(start + _IN_CACHE, span.stop)) for start in starts]
        calls = [self._block(one, gradient[one.start - span.start : one.stop - span.start]) for one in blocks]

        def measure(context: UpdateContext) -> Any:
            return sum(call(context) for call in calls)

        return measure

    def _block(self, block: slice, gradient: Stored) -> Callable[[UpdateContext], Any]:
        n, device = block.stop - block.start, self._device
        scratch = {name: vector[:n] for name, vector in self._scratch.items()}
        pairs = [(scratch[name], vector[block]) for name, vector in self._state.items()]
        pairs.append((scratch[""], self._values[block]))
        state = {name: scratch[name] for name in self._state}
        update = device.bind(self._optimizer, scratch[""], gradient, state, accumulated=None, copy=None)

        def measure(context: UpdateContext) -> Any:
            for target, source in pairs:
                device.copy(target, source)
            update(context)
            return device.sum_of_squares(scratch[""])

        return measure
