"""The sum of the gradients of an evaluation's portions, which a part sends to the shards whole.

The module must not know messages, or when anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from partita.engine.numerics.row_gradient import RowGradient
from partita.engine.parameters.optimizers import Squares
from partita.engine.parameters.optimizers.update_loop import Stored
from partita.engine.parameters.vector import Vector
from partita.engine.runtime.buffers import Vectors
from partita.engine.runtime.fused_update import Apply


class GradientSum:
    """Adds up gradients, and leaves parameters alone. One sum accumulates while the other is in flight.

    Attributes:
        takes_rows: no; a sum is whole.
    """

    takes_rows = False

    def __init__(self, vectors: Vectors) -> None:
        self._device = vectors.device
        self._sums = [vectors.device.zeros(vectors.parameters.shape, vectors.dtype) for _ in range(2)]
        self._current, self._first = 0, False

    def bind(self, span: slice, gradient: Stored) -> Apply:
        """Prepares the sum of a range, see `Updates`. Several threads may add to disjoint ranges."""
        add, copy = self._device.add, self._device.copy
        places = [one[span] for one in self._sums]

        def apply(factor: float, later: int = 0) -> bool:
            act = copy if self._first else add
            act(places[self._current], gradient)
            return True  # numbers that are not finite are reported like any other

        return apply

    def bind_rows(self, span: slice, gradient: RowGradient) -> Apply:
        """Raises AssertionError: nobody may call it."""
        raise AssertionError("a sum takes whole gradients")

    def bind_squares(self, span: slice, gradient: Stored) -> Callable[[], Any]:
        """Prepares the sum of squares of a gradient."""
        return partial(self._device.sum_of_squares, gradient)

    def factors(self, squares: Mapping[str, Squares]) -> dict[str, float]:
        """Takes gradients as they are, without factors."""
        return {}

    def begin(self, *, first: bool) -> None:
        """Begins a portion; the `first` of a sum replaces what was there."""
        self._first = first

    def swap_buffers(self, span: slice, step: int = 0) -> None:
        """Moves the whole sum into flight; the next portion is the first of the other one."""
        self._current = 1 - self._current

    @property
    def in_flight(self) -> Vector:
        """The sum in flight, `[n]`."""
        return self._sums[1 - self._current]
