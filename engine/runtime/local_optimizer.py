"""Updates that a part makes to its own parameters, by an optimizer whose state is its own.

The module must not know messages, or what is sent to anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from partita.engine.numerics.row_gradient import RowGradient, Values
from partita.engine.parameters.optimizers import Optimizer, Squares, UpdateContext, update_rows
from partita.engine.parameters.optimizers.sgd import Averaging
from partita.engine.parameters.optimizers.update_loop import Stored
from partita.engine.parameters.vector import Vector
from partita.engine.runtime.buffers import Vectors
from partita.engine.runtime.directions import Directions
from partita.engine.runtime.fused_update import Apply


@dataclass(frozen=True)
class HeldState:
    """State of an optimizer for a machine's parameters.

    Args:
        vectors: `[n]` each, by name.
        updates: that have led to it.
    """

    vectors: Mapping[str, Vector]
    updates: int


class LocalOptimizer:
    """Applies an optimizer to the machine's parameters, with the machine's own state of it.

    Attributes:
        takes_rows: whether it updates some rows of a table, which gives the bits of an update of all.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        vectors: Vectors,
        *,
        per_step: int = 1,
        held: HeldState | None = None,
        replicas: int = 1,
    ) -> None:
        """Before the first step.

        Args:
            optimizer: computes the updates.
            vectors: the machine's parameters.
            per_step: the number of updates in each step.
            held: the state to begin with; None: the optimizer's initial one.
            replicas: that return changes of running averages, each a share of its own.
        """
        self._replicas = replicas
        self.takes_rows = optimizer.supports_sparse and vectors.device.is_host
        self._optimizer, self._vectors, self._per_step = optimizer, vectors, per_step
        # The updates of the parameters and of the state, before those of this step.
        self._scale, self._count, self._age = 1.0, -per_step, (held.updates if held else 0) - per_step
        first = held.vectors if held else optimizer.state(len(vectors.parameters), vectors.dtype)
        self._state = {name: vectors.device.taken(vector) for name, vector in first.items()}
        self._directions: Directions | None = None  # made for the first norm

    def bind(self, span: slice, gradient: Stored) -> Apply:
        """Prepares (and compiles) the update of a range of the parameters.

        Args:
            span: of the machine's vectors; a layer's, or any part of it.
            gradient: `[n]`, of its size, read at every call: like the masters, or bfloat16 (uint16).

        Returns:
            The update. Several threads may make those of disjoint ranges at the same time.
        """
        vectors, averaged = self._vectors, self._vectors.is_averaged(span)
        replicas = 1 if vectors.is_kept(span) else self._replicas
        share = 1.0 / replicas  # of a change that is accumulated; SGD makes all of it here
        apply = vectors.device.bind(
            Averaging(float(replicas)) if averaged else self._optimizer,
            vectors.parameters[span],
            gradient,
            {name: vector[span] for name, vector in self._state.items()},
            accumulated=self._accumulated(span),
            copy=None if vectors.copy is None else vectors.copy[span],
        )

        def update(factor: float, later: int = 0) -> bool:
            used = share if averaged else factor
            return apply(UpdateContext(self._count + later, used, self._age + later, self._scale))

        return update

    def bind_rows(self, span: slice, gradient: RowGradient) -> Apply:
        """Prepares the update of a table by the rows that its gradient has, read at every call."""
        vectors, width = self._vectors, gradient.width
        table = _table(vectors.parameters, span, width)
        state = {name: _table(vector, span, width) for name, vector in self._state.items()}
        copy = None if vectors.copy is None else _table(vectors.copy, span, width)
        with_none = np.zeros(0, np.int64), np.zeros((0, width), vectors.dtype)
        update_rows(self._optimizer, table, *with_none, state, UpdateContext(0), copy=copy)  # compiles

        def update(factor: float, later: int = 0) -> bool:
            context = UpdateContext(self._count + later, factor, self._age + later, self._scale)
            self._accumulate_rows(span, gradient, factor)
            return update_rows(
                self._optimizer, table, gradient.rows, gradient.values, state, context, copy=copy
            )

        return update

    def bind_squares(self, span: slice, gradient: Stored) -> Callable[[], Any]:
        """Prepares the sum of squares of a gradient, or of what the optimizer will make of it."""
        vectors, measured = self._vectors, self._optimizer.measured
        if measured is None:
            return partial(vectors.device.sum_of_squares, gradient)
        if self._directions is None:
            self._directions = Directions(
                measured, vectors.parameters, self._state, device=vectors.device, dtype=vectors.dtype
            )
        measure = self._directions.bind(span, gradient)
        return lambda: measure(UpdateContext(self._count, age=self._age))

    def factors(self, squares: Mapping[str, Squares]) -> dict[str, float]:
        """The optimizer's factor for the gradient of each parameter, by norms over all machines."""
        return self._optimizer.factors(squares)

    def advance(self, updates: int | None = None, scale: float = 1.0) -> None:
        """Begins a step.

        Args:
            scale: factor of the learning rate.
            updates: how many updates the parameters have had, where they came from elsewhere; schedules go by
                it. None: as many more than at the last step as that made; 0 at the first.
        """
        self._scale = scale
        self._count = self._count + self._per_step if updates is None else updates
        self._age += self._per_step

    def _accumulated(self, span: slice) -> Vector | None:
        """The array to which the gradients of a range are added, if any."""
        return None

    def _accumulate_rows(self, span: slice, gradient: RowGradient, factor: float) -> None:
        """Adds the gradient of some rows to the next push, if there is one."""


def _table(vector: Vector, span: slice, width: int) -> Values:
    """A range of a vector as rows of so many numbers."""
    return vector[span].reshape(-1, width)
