"""Updates a part makes with its own gradients: applied to its parameters, and accumulated for the shards.

It must not know messages or when anything is sent.
"""

from __future__ import annotations

from collections.abc import Mapping

from partita.engine.parameters.optimizers import Optimizer, Squares, UpdateContext
from partita.engine.parameters.optimizers.update_loop import Stored
from partita.engine.parameters.vector import Vector
from partita.engine.runtime.buffers import Vectors
from partita.engine.runtime.fused_update import Apply


class LocalOptimizer:
    """Applies an optimizer to the machine's parameters, with the machine's own state of it."""

    def __init__(self, optimizer: Optimizer, vectors: Vectors, *, per_step: int = 1) -> None:
        """With an empty state, before the first step; so many updates are made in each."""
        self._rule, self._vectors, self._per_step = optimizer, vectors, per_step
        self._count = (
            self._age
        ) = -per_step  # updates of the parameters and the state, before those of this step
        fresh = optimizer.state(len(vectors.parameters), vectors.dtype)
        self._state = {name: vectors.device.taken(vector) for name, vector in fresh.items()}

    def bind(self, span: slice, gradient: Stored) -> Apply:
        """Prepares (and compiles) the update of a range of the parameters.

        Args:
            span: of the machine's vectors; a layer's, or any part of it.
            gradient: `[n]`, of its size, read at every call: like the masters, or bfloat16 (uint16).

        Returns:
            The update. Several threads may make those of disjoint ranges at the same time.
        """
        vectors = self._vectors
        apply = vectors.device.bind(
            self._rule,
            vectors.parameters[span],
            gradient,
            {name: vector[span] for name, vector in self._state.items()},
            accumulated=self._accumulated(span),
            copy=None if vectors.copy is None else vectors.copy[span],
        )

        def update(factor: float, later: int = 0) -> bool:
            return apply(UpdateContext(self._count + later, factor, self._age + later))

        return update

    def factors(self, squares: Mapping[str, Squares]) -> dict[str, float]:
        """What the optimizer multiplies the gradient of each parameter with, by norms over all machines."""
        return self._rule.factors(squares)

    def advance(self, updates: int | None = None) -> None:
        """A step begins.

        Args:
            updates: how many updates the parameters have had, where they came from elsewhere; schedules go by
                it. None: as many more than at the last step as that made; 0 at the first.
        """
        self._count = self._count + self._per_step if updates is None else updates
        self._age += self._per_step

    def _accumulated(self, span: slice) -> Vector | None:
        """Where the gradients of a range add up; None where they do not."""
        return None


class GradientAccumulation(LocalOptimizer):
    """Adds each gradient to what will be pushed, and steps locally, in one pass."""

    def __init__(self, optimizer: Optimizer, vectors: Vectors, *, per_step: int = 1) -> None:
        """With nothing accumulated."""
        super().__init__(optimizer, vectors, per_step=per_step)
        self.accumulated = vectors.device.zeros(vectors.parameters.shape, vectors.dtype)
        self.in_flight = vectors.device.zeros(vectors.parameters.shape, vectors.dtype)

    def swap_buffers(self, span: slice) -> None:
        """What has accumulated goes into flight; accumulating restarts from zero."""
        self.in_flight[span] = self.accumulated[span]
        self.discard(span)

    def discard(self, span: slice) -> None:
        """Accumulating restarts from zero."""
        self.accumulated[span] = 0.0

    def _accumulated(self, span: slice) -> Vector:
        return self.accumulated[span]


class GradientSum:
    """Adds gradients up, portion after portion, and leaves the parameters alone. There are two sums: one
    accumulates while the other is on its way.
    """

    def __init__(self, vectors: Vectors) -> None:
        """With sums of zero."""
        self._device = vectors.device
        shape, dtype = vectors.parameters.shape, vectors.dtype
        self._accumulated, self._in_flight = (vectors.device.zeros(shape, dtype) for _ in range(2))
        self._flipped = self._first = False

    def bind(self, span: slice, gradient: Stored) -> Apply:
        """Prepares the sum of a range, see `Updates`. Several threads may add to disjoint ranges."""
        add, copy = self._device.add, self._device.copy
        places = self._accumulated[span], self._in_flight[span]

        def apply(factor: float, later: int = 0) -> bool:
            act = copy if self._first else add
            act(places[self._flipped], gradient)
            return True  # what is not finite is told like any other number

        return apply

    def factors(self, squares: Mapping[str, Squares]) -> dict[str, float]:
        """Gradients are taken as they are."""
        return {}

    def begin(self, *, first: bool) -> None:
        """A portion begins; the `first` of a sum replaces what was there."""
        self._first = first

    def swap_buffers(self) -> None:
        """The sum that accumulated goes on its way; the next portion is the first of the other one."""
        self._flipped = not self._flipped

    @property
    def in_flight(self) -> Vector:
        """The sum that is on its way, `[n]`."""
        return self._in_flight if not self._flipped else self._accumulated
