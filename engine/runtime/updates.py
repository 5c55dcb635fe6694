"""What follows a layer's gradient on the part itself: a step of the rule, and what accrues for the shards.

It must not know messages or when anything is sent.
"""

from __future__ import annotations

import numpy as np

from partita.engine.parameters.rules import Rule
from partita.engine.parameters.vector import Vector
from partita.engine.runtime.buffers import Vectors


class LocalRule:
    """Applies a rule to each layer's parameters, with the machine's own state of it."""

    def __init__(self, rule: Rule, vectors: Vectors) -> None:
        rule.compile(vectors.parameters.dtype)
        self._rule, self._vectors = rule, vectors
        self._state = rule.state(vectors.parameters.size, vectors.parameters.dtype)

    def __call__(self, layer: str) -> None:
        """Updates the layer's parameters by their gradient."""
        span, state = self.part(layer)
        self._rule.update(self._vectors.parameters[span], self._vectors.gradient[span], state)

    def part(self, layer: str) -> tuple[slice, dict[str, Vector]]:
        """The layer's range, and the rule's state there."""
        span = self._vectors.span(layer)
        return span, {name: vector[span] for name, vector in self._state.items()}


class Accrual(LocalRule):
    """Adds each gradient to what will be pushed, and steps locally, in one pass."""

    def __init__(self, rule: Rule, vectors: Vectors) -> None:
        super().__init__(rule, vectors)
        self.accrued = np.zeros_like(vectors.gradient)
        self.in_flight = np.zeros_like(vectors.gradient)

    def __call__(self, layer: str) -> None:
        """See `LocalRule`."""
        span, state = self.part(layer)
        vectors = self._vectors
        self._rule.step(vectors.parameters[span], vectors.gradient[span], self.accrued[span], state)

    def flip(self, span: slice) -> None:
        """What has accrued goes into flight; accruing restarts from zero."""
        self.in_flight[span] = self.accrued[span]
        self.accrued[span] = 0.0
