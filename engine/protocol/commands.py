"""What a batch method asks of the vectors that shards hold: operations, requests, and what comes back.

A coordinator holds no vector. It sends operations; every shard does them on its own slice and gives back
scalars, which are joined over the shards. A batch method is a generator of requests: it says what it wants
done and is told the scalars, so that it runs as well against shards, in one process, or from a journal.

Source: DistBelief, section 4.2 (commands to parameter shards); Chen, Wang and Zhou 2014, "Large-scale L-BFGS
using MapReduce" (all dot products in one round, one combination in the next).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec

POINT: Final = "x"
"""The vector of parameters: where the function is evaluated."""


class _Operation(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, array_like=True):
    pass


class Combine(_Operation, frozen=True, tag=True):
    """`to` becomes the sum of `factor * vector` over the terms; it may be among them. No terms: zeros.

    Added up in float64, term by term, and rounded once.
    """

    to: str
    terms: tuple[tuple[float, str], ...] = ()


class Multiply(_Operation, frozen=True, tag=True):
    """`to` becomes `left * right`, number by number."""

    to: str
    left: str
    right: str


class Swap(_Operation, frozen=True, tag=True):
    """Each becomes what the other was; no number is moved. One that is not there is made, all zeros."""

    one: str
    other: str


class Dots(_Operation, frozen=True, tag=True):
    """Gives every product of a left and a right vector, `len(left) * len(right)` scalars, row by row."""

    left: tuple[str, ...]
    right: tuple[str, ...]


class Largest(_Operation, frozen=True, tag=True):
    """Gives the largest absolute value in the vector; NaN where there is one."""

    vector: str


class Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Portions `[first, first + count)` of the data, whose gradients add up in a vector of their own."""

    vector: str
    first: int
    count: int


class Evaluate(_Operation, frozen=True, tag=True):
    """Evaluates the function at `x`: replicas compute, and each segment's sum of gradients is in its vector.

    Operations after it in a request leave `x` alone: a replica that begins anew may have to compute there.

    Gives two scalars for each segment: the sum of the losses of its examples, and how many are right.
    """

    segments: tuple[Segment, ...]


class Snapshot(_Operation, frozen=True, tag=True):
    """Keeps all vectors, as they are now, as this checkpoint's file (the coordinator's own business)."""

    checkpoint: int


class Restore(_Operation, frozen=True, tag=True):
    """All vectors become what this checkpoint's file holds; None: what the run began with (likewise)."""

    checkpoint: int | None


Operation: TypeAlias = Combine | Multiply | Swap | Dots | Largest | Evaluate | Snapshot | Restore
Request: TypeAlias = tuple[Operation, ...]
"""Operations in order, at most one `Evaluate` among them. They travel in one message."""

Scalars: TypeAlias = tuple[float, ...]
"""What the operations of a request give, in their order."""


def zero(vector: str) -> Combine:
    """All numbers become 0."""
    return Combine(vector)


def copy(to: str, vector: str) -> Combine:
    """`to = vector`."""
    return Combine(to, ((1.0, vector),))


def scale(vector: str, factor: float) -> Combine:
    """`vector = factor * vector`."""
    return Combine(vector, ((factor, vector),))


def axpy(to: str, factor: float, vector: str) -> Combine:
    """`to = to + factor * vector`."""
    return Combine(to, ((1.0, to), (factor, vector)))


def dot(left: str, right: str) -> Dots:
    """One product."""
    return Dots((left,), (right,))


def reads(operation: Operation) -> frozenset[str]:
    """The vectors whose numbers it needs."""
    match operation:
        case Combine(terms=terms):
            return frozenset(vector for _, vector in terms)
        case Multiply(left=left, right=right):
            return frozenset((left, right))
        case Swap(one=one, other=other):
            return frozenset((one, other))
        case Dots(left=lefts, right=rights):
            return frozenset((*lefts, *rights))
        case Largest(vector=vector):
            return frozenset((vector,))
        case Evaluate():
            return frozenset((POINT,))
        case _:
            return frozenset()


def writes(operation: Operation) -> frozenset[str]:
    """The vectors whose numbers it replaces, all of them."""
    match operation:
        case Combine(to=to) | Multiply(to=to):
            return frozenset((to,))
        case Swap(one=one, other=other):
            return frozenset((one, other))
        case Evaluate(segments=segments):
            return frozenset(segment.vector for segment in segments)
        case _:
            return frozenset()


def n_scalars(operation: Operation) -> int:
    """How many scalars it gives."""
    match operation:
        case Dots(left=left, right=right):
            return len(left) * len(right)
        case Largest():
            return 1
        case Evaluate(segments=segments):
            return 2 * len(segments)
        case _:
            return 0


def scalars_of_shard(request: Request) -> int:
    """How many scalars each shard gives for a request: those of all operations but `Evaluate`."""
    return sum(n_scalars(one) for one in request if not isinstance(one, Evaluate))


def evaluation_in(request: Request) -> Evaluate | None:
    """The evaluation among the operations, if there is one."""
    return next((operation for operation in request if isinstance(operation, Evaluate)), None)


def join_scalars(request: Request, answers: Sequence[Scalars], losses: Scalars = ()) -> Scalars:
    """The scalars of a request, from those of every shard and from what the replicas counted.

    Args:
        request: what was asked.
        answers: of each shard, in the order of the shards: the scalars of all operations but `Evaluate`.
        losses: those of `Evaluate`.
    """
    found: list[float] = []
    position = 0
    for operation in request:
        if isinstance(operation, Evaluate):
            found += losses
            continue
        stop = position + n_scalars(operation)
        of_shards = [answer[position:stop] for answer in answers]
        add = _largest if isinstance(operation, Largest) else exact_sum
        found += of_shards[0] if len(of_shards) == 1 else map(add, zip(*of_shards, strict=True))
        position = stop
    return tuple(found)


def exact_sum(scalars: Sequence[float]) -> float:
    """The exact sum, rounded once; NaN and infinity go through, where `fsum` would raise."""
    return math.fsum(scalars) if all(map(math.isfinite, scalars)) else sum(scalars)


def _largest(scalars: Sequence[float]) -> float:
    return math.nan if any(math.isnan(scalar) for scalar in scalars) else max(scalars)


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """Portions `[first, first + count)` that one replica computes in one go; their gradient is sent once."""

    segment: int
    first: int
    count: int


def work_units_of(evaluate: Evaluate, length: int) -> tuple[WorkUnit, ...]:
    """The work units of an evaluation: `length` portions each, fewer at the end of a segment.

    They follow from the request alone, never from who computes, and so does what is added to what.
    """
    return tuple(
        WorkUnit(n, first, min(length, segment.first + segment.count - first))
        for n, segment in enumerate(evaluate.segments)
        for first in range(segment.first, segment.first + segment.count, length)
    )


@dataclass(frozen=True, slots=True)
class Iterated:
    """A method has done an iteration; only to be shown.

    Args:
        iteration: how many are done.
        loss: the function's value now.
        gradient_norm: the largest absolute value in its gradient.
        step: of the line search, as a multiple of the direction.
        evaluations: in all so far.
        note: anything out of the ordinary, in a few words ("" is nothing).
    """

    iteration: int
    loss: float
    gradient_norm: float
    step: float
    evaluations: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a method ended: "converged" to its tolerances, "stopped" at a limit or where nothing descends any
    more, or "failed" before anything was gained. `reason` is one sentence.
    """

    kind: Literal["converged", "stopped", "failed"]
    reason: str


Steps: TypeAlias = Generator[Request | Iterated, Scalars, Outcome]
"""A method at work: it yields requests and is sent their scalars; for an `Iterated` it is sent `()`.

What it asks for must follow from the scalars alone: a run that was interrupted is repeated from its journal.
"""


@dataclass(frozen=True, slots=True)
class Portions:
    """How the data is cut: `size` examples in each portion, fewer in the last one of an epoch.

    Portions are numbered on through all epochs, `per_epoch` in each.
    """

    examples: int
    size: int

    @property
    def per_epoch(self) -> int:
        """Portions of the whole data."""
        return -(-self.examples // self.size)

    def place(self, portion: int) -> tuple[int, int, int]:
        """(epoch, start, stop): examples `[start, stop)` in the order of that epoch."""
        epoch, n = divmod(portion, self.per_epoch)
        return epoch, n * self.size, min((n + 1) * self.size, self.examples)

    def count(self, first: int, count: int) -> int:
        """Examples in portions `[first, first + count)`."""
        return self._before(first + count) - self._before(first)

    def _before(self, portion: int) -> int:
        epoch, n = divmod(portion, self.per_epoch)
        return epoch * self.examples + n * self.size
