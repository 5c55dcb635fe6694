"""Delay compensation at a shard: the parameters from which each part computes, and corrected gradients.

A copy is kept of what each part has fetched and may still push a gradient of: two or three of its own range.
A part computes with its own pushes over what it has fetched, so each of them is applied to its copies, too,
and what a copy lacks is what others have changed. The copies are remade when a shard begins again, as parts
fetch anew from each new process of a shard, and a gradient of before is applied as it is.

Source: S. Zheng et al., "Asynchronous stochastic gradient descent with delay compensation", 2017.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from partita.engine.parameters.slots import intersections
from partita.engine.parameters.vector import Vector
from partita.engine.parameters.vectors import VectorStore
from partita.engine.protocol.commands import POINT
from partita.engine.protocol.events import Span
from partita.engine.protocol.shard_effects import ApplyGradient, Compensate
from partita.engine.protocol.staleness import Compensated
from partita.engine.transport.payload import Payload

MOST_COPIES: Final = 8
"""Copies kept for a part at most: a push is sent before the fetch after the next one, unless it is lost."""

EPSILON: Final = 1e-7
"""Least mean square of a gradient by which a strength is divided: the root of float32's smallest step."""


@dataclass(slots=True)
class _MeanSquare:
    """The running mean of g * g over a range, less the bias of its beginning from 0."""

    mean: Vector
    pushes: int = field(default=0)

    def take(self, gradient: Vector, decay: float) -> Vector:
        """Adds a gradient; returns the mean."""
        self.mean *= decay
        self.mean += (1.0 - decay) * gradient * gradient
        self.pushes += 1
        return self.mean / self.mean.dtype.type(1.0 - decay**self.pushes)


class DelayCompensation:
    """The copies of what parts have fetched, of one shard."""

    def __init__(
        self, settings: Compensated, store: VectorStore, learning: Sequence[tuple[int, int]]
    ) -> None:
        """Has no copies.

        Args:
            settings: of the correction.
            store: the shard's vectors.
            learning: the ranges of `x` that are trainable, ascending: what else a push holds is no gradient.
        """
        self._settings: Final = settings
        self._store: Final = store
        self._learning: Final = tuple(learning)
        self._copies: Final[dict[str, deque[tuple[int, Vector]]]] = {}  # by version, ascending
        self._squares: Final[dict[int, _MeanSquare]] = {}  # by range

    def fetched(self, stream: str, version: int, span: Span) -> None:
        """Keeps what is sent to a part, of a stream."""
        copies = self._copies.setdefault(stream, deque(maxlen=MOST_COPIES))
        if not copies or copies[-1][0] < version:
            copies.append((version, self._store.read(span).copy()))

    def correct(self, effect: Compensate) -> None:
        """Replaces a push's numbers, where the parameters are known from which they were computed."""
        payload, span = effect.payload, effect.span
        assert isinstance(payload, Payload)
        copies = self._copies.get(effect.stream, deque())
        while copies and copies[0][0] < effect.base:
            copies.popleft()
        if not copies or copies[0][0] != effect.base:
            return
        with np.errstate(all="ignore"):  # what is not finite is found where it is applied
            payload.replace(self._corrected(span, payload, copies[0][1]))

    def _corrected(self, span: Span, payload: Payload, then: Vector) -> Vector:
        """Returns a gradient that allows for the change of the values since then."""
        gradient = np.empty(span.stop - span.start, self._store.dtype)
        payload.copy_into(gradient)
        strength, settings = self._settings.strength, self._settings
        factors: Vector | float = strength
        if settings.adaptive:
            zeros = np.zeros_like(gradient)
            squares = self._squares.setdefault(span.start, _MeanSquare(zeros))
            factors = strength / np.sqrt(squares.take(gradient, settings.decay) + EPSILON)
        change = factors * gradient * gradient * (self._store.read(span) - then)
        for own in intersections(self._learning, span.start, span.stop):
            part = slice(own.start - span.start, own.stop - span.start)
            gradient[part] += change[part]
        return gradient

    def before(self, effect: ApplyGradient) -> Vector | None:
        """Returns a copy of the values that a push is about to change, where `after` needs them."""
        if not self._copies.get(effect.stream):
            return None
        return self._store.read(Span(POINT, effect.span.start, effect.span.stop)).copy()

    def after(self, effect: ApplyGradient, before: Vector | None) -> None:
        """Changes the copies of a part by its own push."""
        if before is not None:
            change = self._store.read(effect.span) - before
            for _, values in self._copies[effect.stream]:
                values += change
