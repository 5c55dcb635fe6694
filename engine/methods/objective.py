"""Objective of a batch method as operations: the mean loss of all examples, or of a moving sample.

This module does not know how a method chooses its steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from partita.engine.protocol.commands import (
    POINT,
    Combine,
    Dots,
    Evaluate,
    Largest,
    Portions,
    Request,
    Scalars,
    Segment,
    n_scalars,
)
from partita.layers.text import counted

GRADIENT: Final = "g"  # vector of the batch's gradient at `x`
_HEAD: Final = "head"
_TAIL: Final = "tail"


@dataclass(frozen=True, slots=True)
class Value:
    """Result of an evaluation: losses, and the largest absolute value in the gradient.

    `head` and `tail` are the losses of the examples shared with the previous and the next batch; a full batch
    shares everything.
    """

    loss: float
    head: float
    tail: float
    largest: float

    @property
    def finite(self) -> bool:
        """Returns whether loss and gradient are finite."""
        return all(map(math.isfinite, (self.loss, self.head, self.tail, self.largest)))


@dataclass(frozen=True, slots=True)
class Objective:
    """The mean loss over a batch plus `l2 / 2 * |x|^2`, over all parameters.

    A replica divides the sum of a portion's gradients by `portions.size`, also where the portion has fewer
    examples; so the mean is that sum times `size / examples`.

    Args:
        portions: of the data.
        batch: number of portions in a sampled batch; None, or all, is the full batch. Sampled batches follow
            one another through the data, epoch after epoch.
        overlap: number of portions that a sampled batch shares with the next one, so that a change of the
            gradient is distinguished from a change of the examples. At least 1, at most half of the batch.
            Few examples give a poor estimate of the curvature: use hundreds, and a quarter of the batch.
            Source: Berahas, Nocedal and Takac 2016, "A multi-batch L-BFGS method for machine learning".
        l2: factor of the penalty, at least 0.

    Raises:
        ValueError: a batch larger than the data, an impossible overlap, or a negative `l2`.
    """

    portions: Portions
    batch: int | None = None
    overlap: int = 0
    l2: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.l2) and self.l2 >= 0):
            raise ValueError(f"l2 is {self.l2}; it must not be below 0, and 0 is none")
        if self.portions.examples < 1:
            raise ValueError("there are no examples, and a mean needs one; hand over data")
        if self.batch is None:
            return
        if not 1 <= self.batch <= self.portions.per_epoch:
            raise ValueError(
                f"a batch of {counted(self.batch, 'portion')} cannot be taken from data of "
                f"{self.portions.per_epoch}; use 1 to {self.portions.per_epoch}, or None for all of it"
            )
        if self.sampled and not 1 <= self.overlap <= self.batch // 2:
            raise ValueError(
                f"batches of {counted(self.batch, 'portion')} cannot share {self.overlap} with the next; "
                "they share at least 1, to see how the gradient changes, and at most half: take larger "
                f"batches or smaller portions"
            )

    @property
    def sampled(self) -> bool:
        """Returns whether batches are samples of the data."""
        return self.batch is not None and self.batch < self.portions.per_epoch

    @property
    def head(self) -> str:
        """Vector of the gradient over the examples shared with the previous batch."""
        return _HEAD if self.sampled else GRADIENT

    @property
    def tail(self) -> str:
        """Vector of the gradient over the examples shared with the next batch."""
        return _TAIL if self.sampled else GRADIENT

    def evaluation(self, number: int) -> Request:
        """Returns operations that compute the gradients of batch `number` at `x`."""
        segments = self._segments(number)
        squares = (Dots((POINT,), (POINT,)),) if self.l2 else ()
        return (Evaluate(segments), *squares, *self._means(segments), Largest(GRADIENT))

    def n_scalars(self) -> int:
        """Returns the number of scalars of an evaluation."""
        return sum(map(n_scalars, self.evaluation(0)))

    def value(self, number: int, scalars: Scalars) -> Value:
        """Reads the scalars of `evaluation(number)`."""
        segments = self._segments(number)
        sums = scalars[: 2 * len(segments) : 2]
        penalty = self.l2 / 2 * scalars[-2] if self.l2 else 0.0
        loss = math.fsum(sums) / self._examples(*segments) + penalty
        if not self.sampled:
            return Value(loss, loss, loss, scalars[-1])
        head = sums[0] / self._examples(segments[0]) + penalty
        tail = sums[-1] / self._examples(segments[-1]) + penalty
        return Value(loss, head, tail, scalars[-1])

    def _segments(self, number: int) -> tuple[Segment, ...]:
        if self.batch is None or not self.sampled:
            return (Segment(GRADIENT, 0, self.portions.per_epoch),)
        between = self.batch - 2 * self.overlap
        first = number * (self.batch - self.overlap)
        middle = (Segment(GRADIENT, first + self.overlap, between),) if between else ()
        tail = Segment(_TAIL, first + self.overlap + between, self.overlap)
        return (Segment(_HEAD, first, self.overlap), *middle, tail)

    def _means(self, segments: tuple[Segment, ...]) -> Request:
        """Returns operations that turn sums into means and add the penalty."""
        penalty = ((self.l2, POINT),) if self.l2 else ()
        factor = self.portions.size / self._examples(*segments)
        if not self.sampled and factor == 1 and not penalty:
            return ()
        whole = Combine(GRADIENT, (*((factor, segment.vector) for segment in segments), *penalty))
        ends = (segments[0], segments[-1]) if self.sampled else ()
        return (
            whole,
            *(
                Combine(end.vector, ((self.portions.size / self._examples(end), end.vector), *penalty))
                for end in ends
            ),
        )

    def _examples(self, *segments: Segment) -> int:
        return sum(self.portions.count(segment.first, segment.count) for segment in segments)
