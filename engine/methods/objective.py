"""What is minimised, as operations: the mean loss of all examples, or of a sample that moves on.

It says which portions a batch has, what becomes of their sums, and how the scalars are read. It must not know
how a method chooses its steps.
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

GRADIENT: Final = "g"
"""The vector of the batch's gradient at `x`."""

_HEAD: Final = "head"
_TAIL: Final = "tail"


@dataclass(frozen=True, slots=True)
class Value:
    """What an evaluation found.

    Args:
        loss: of the batch.
        head: of the examples that it shares with the batch before.
        tail: of those that it shares with the next one. A full batch shares everything.
        largest: absolute value in the gradient.
    """

    loss: float
    head: float
    tail: float
    largest: float

    @property
    def finite(self) -> bool:
        """Whether loss and gradient are numbers that one can go on with."""
        return all(map(math.isfinite, (self.loss, self.head, self.tail, self.largest)))


@dataclass(frozen=True, slots=True)
class Objective:
    """The mean loss over a batch plus `l2 / 2 * |x|^2`, over all parameters.

    A replica sums the gradients of a portion's examples and divides by `portions.size`, also where the
    portion has fewer; so the mean is that sum times `size / examples`.

    Args:
        portions: how the data is cut.
        batch: portions in a sampled batch; None, or all there are, is the full batch. Sampled batches follow
            each other through the data, epoch after epoch.
        overlap: portions that a sampled batch shares with the next one, so that a change of the gradient can
            be told from a change of the examples. At least 1, at most half of the batch. Few examples
            know little of the curvature: let them be hundreds, and a quarter of the batch. Source: Berahas,
            Nocedal and Takac 2016, "A multi-batch L-BFGS method for machine learning".
        l2: not below 0.

    Raises:
        ValueError: a batch larger than the data, an overlap that a batch cannot have, or a negative `l2`.
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
        """Whether batches differ."""
        return self.batch is not None and self.batch < self.portions.per_epoch

    @property
    def head(self) -> str:
        """The vector of the gradient over what a batch shares with the one before."""
        return _HEAD if self.sampled else GRADIENT

    @property
    def tail(self) -> str:
        """The vector of the gradient over what it shares with the next one."""
        return _TAIL if self.sampled else GRADIENT

    def evaluation(self, number: int) -> Request:
        """Operations after which the vectors hold the gradients of batch `number` at `x`."""
        segments = self._segments(number)
        squares = (Dots((POINT,), (POINT,)),) if self.l2 else ()
        return (Evaluate(segments), *squares, *self._means(segments), Largest(GRADIENT))

    def n_scalars(self) -> int:
        """How many scalars an evaluation gives."""
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
        """Sums become means, and the penalty is added."""
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
