"""What follows a gradient on the part itself: a step of the rule, and what accrues for the shards.

It must not know messages or when anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from partita.engine.parameters.rules import Moment, Rule, Squares
from partita.engine.parameters.rules.rule import Stored
from partita.engine.parameters.vector import Vector
from partita.engine.runtime.buffers import Vectors

Apply: TypeAlias = Callable[[float], bool]
"""Updates a range by its gradient times a factor; says whether the gradient was finite."""


class LocalRule:
    """Applies a rule to the machine's parameters, with the machine's own state of it."""

    def __init__(self, rule: Rule, vectors: Vectors) -> None:
        """With an empty state, before the first step."""
        self._rule, self._vectors = rule, vectors
        self._count = self._age = -1  # updates of the parameters, and of the state, before those of this step
        fresh = rule.state(len(vectors.parameters), vectors.dtype)
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
            accrued=self._accrued(span),
            copy=None if vectors.copy is None else vectors.copy[span],
        )
        return lambda factor: apply(Moment(self._count, factor, self._age))

    def factors(self, squares: Mapping[str, Squares]) -> dict[str, float]:
        """What the rule multiplies the gradient of each parameter with, by norms over all machines."""
        return self._rule.factors(squares)

    def advance(self, updates: int | None = None) -> None:
        """A step begins.

        Args:
            updates: how many updates the parameters have had, where they came from elsewhere; schedules go by
                it. None: one more than at the last step; 0 at the first.
        """
        self._count = self._count + 1 if updates is None else updates
        self._age += 1

    def _accrued(self, span: slice) -> Vector | None:
        """Where the gradients of a range add up; None where they do not."""
        return None


class Accrual(LocalRule):
    """Adds each gradient to what will be pushed, and steps locally, in one pass."""

    def __init__(self, rule: Rule, vectors: Vectors) -> None:
        """With nothing accrued."""
        super().__init__(rule, vectors)
        self.accrued = vectors.device.zeros(vectors.parameters.shape, vectors.dtype)
        self.in_flight = vectors.device.zeros(vectors.parameters.shape, vectors.dtype)

    def flip(self, span: slice) -> None:
        """What has accrued goes into flight; accruing restarts from zero."""
        self.in_flight[span] = self.accrued[span]
        self.accrued[span] = 0.0

    def _accrued(self, span: slice) -> Vector:
        return self.accrued[span]
