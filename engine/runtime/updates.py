"""Updates that a part makes with its gradients: to its own parameters, and to what it sends to the shards.

The module must not know messages, or when anything is sent.
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
        """An empty state, before the first step.

        Args:
            optimizer: computes the updates.
            vectors: the machine's parameters.
            per_step: the number of updates in each step.
        """
        self._optimizer, self._vectors, self._per_step = optimizer, vectors, per_step
        # The updates of the parameters and of the state, before those of this step.
        self._count = self._age = -per_step
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
            self._optimizer,
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
        """The optimizer's factor for the gradient of each parameter, by norms over all machines."""
        return self._optimizer.factors(squares)

    def advance(self, updates: int | None = None) -> None:
        """Begins a step.

        Args:
            updates: how many updates the parameters have had, where they came from elsewhere; schedules go by
                it. None: as many more than at the last step as that made; 0 at the first.
        """
        self._count = self._count + self._per_step if updates is None else updates
        self._age += self._per_step

    def _accumulated(self, span: slice) -> Vector | None:
        """The array to which the gradients of a range are added, if any."""
        return None


class GradientAccumulation(LocalOptimizer):
    """Updates the part's own parameters, and adds up the gradients for the next push, in one pass."""

    def __init__(self, optimizer: Optimizer, vectors: Vectors, *, per_step: int = 1) -> None:
        """An empty state and sums of zero, see `LocalOptimizer`."""
        super().__init__(optimizer, vectors, per_step=per_step)
        self.accumulated = vectors.device.zeros(vectors.parameters.shape, vectors.dtype)
        self.in_flight = vectors.device.zeros(vectors.parameters.shape, vectors.dtype)

    def swap_buffers(self, span: slice) -> None:
        """Moves the sum of a range into flight, and starts from zero."""
        self.in_flight[span] = self.accumulated[span]
        self.clear(span)

    def clear(self, span: slice) -> None:
        """Sets the sum of a range to zero."""
        self.accumulated[span] = 0.0

    def _accumulated(self, span: slice) -> Vector:
        return self.accumulated[span]


class GradientSum:
    """Adds up gradients, and leaves parameters alone. One sum accumulates while the other is in flight."""

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

    def factors(self, squares: Mapping[str, Squares]) -> dict[str, float]:
        """No factors: gradients are taken as they are."""
        return {}

    def begin(self, *, first: bool) -> None:
        """Begins a portion; the `first` of a sum replaces what was there."""
        self._first = first

    def swap_buffers(self, span: slice) -> None:
        """Moves the whole sum into flight; the next portion is the first of the other one."""
        self._current = 1 - self._current

    @property
    def in_flight(self) -> Vector:
        """The sum in flight, `[n]`."""
        return self._sums[1 - self._current]
