"""Requests of a batch method to the vectors that shards hold: operations, and the scalars they give.

A coordinator holds no vector. It sends operations; every shard executes them on its own slice and returns
scalars, which are joined over the shards. A batch method is a generator that yields requests and is sent
their scalars, so that it runs as well against shards, in one process, or from a journal.

Source: DistBelief, section 4.2 (commands to parameter shards); Chen, Wang and Zhou 2014, "Large-scale L-BFGS
using MapReduce" (all dot products in one round, one combination in the next).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec

POINT: Final = "x"
"""The vector of parameters: the point at which the function is evaluated."""


class _Operation(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, array_like=True):
    pass


class Combine(_Operation, frozen=True, tag=True):
    """Sets `to` to the sum of `factor * vector` over the terms, in float64, term by term, rounded once.

    `to` may be among the terms. No terms: zeros.
    """

    to: str
    terms: tuple[tuple[float, str], ...] = ()


class Multiply(_Operation, frozen=True, tag=True):
    """Sets `to` to `left * right`, elementwise."""

    to: str
    left: str
    right: str


class Swap(_Operation, frozen=True, tag=True):
    """Exchanges two names; no number is moved. A missing vector is created, all zeros."""

    one: str
    other: str


class Dots(_Operation, frozen=True, tag=True):
    """Gives the dot product of every left and right vector: `len(left) * len(right)` scalars, row by row."""

    left: tuple[str, ...]
    right: tuple[str, ...]


class Largest(_Operation, frozen=True, tag=True):
    """Gives the largest absolute value in the vector; NaN where it contains one."""

    vector: str


class Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Portions `[first, first + count)` of the data, whose gradients are summed in a vector of their own."""

    vector: str
    first: int
    count: int


class Evaluate(_Operation, frozen=True, tag=True):
    """Evaluates the function at `x`: replicas compute, and each segment's vector gets its sum of gradients.

    Gives two scalars for each segment: the sum of the losses of its examples, and how many are right.
    Later operations of the request leave `x` alone: a restarted replica may have to compute there.
    """

    segments: tuple[Segment, ...]


class ShowPoint(_Operation, frozen=True, tag=True):
    """Sends `x` to every part that asks, until the next command. Only the coordinator asks for it."""


class Snapshot(_Operation, frozen=True, tag=True):
    """Writes all vectors, as they are now, to this checkpoint's file. Only the coordinator asks for it."""

    checkpoint: int


class Restore(_Operation, frozen=True, tag=True):
    """Reads all vectors from this checkpoint's file; None: those of the run's start. Likewise."""

    checkpoint: int | None


Operation: TypeAlias = Combine | Multiply | Swap | Dots | Largest | Evaluate | ShowPoint | Snapshot | Restore
Request: TypeAlias = tuple[Operation, ...]
"""Operations in order, at most one `Evaluate` among them, in one message."""

Scalars: TypeAlias = tuple[float, ...]
"""The numbers that the operations of a request give, in their order."""


def zero(vector: str) -> Combine:
    """Returns the operation `vector = 0`."""
    return Combine(vector)


def copy(to: str, vector: str) -> Combine:
    """Returns the operation `to = vector`."""
    return Combine(to, ((1.0, vector),))


def scale(vector: str, factor: float) -> Combine:
    """Returns the operation `vector = factor * vector`."""
    return Combine(vector, ((factor, vector),))


def axpy(to: str, factor: float, vector: str) -> Combine:
    """Returns the operation `to = to + factor * vector`."""
    return Combine(to, ((1.0, to), (factor, vector)))


def dot(left: str, right: str) -> Dots:
    """Returns the operation that gives one dot product."""
    return Dots((left,), (right,))


def reads(operation: Operation) -> frozenset[str]:
    """Returns the vectors that an operation reads."""
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
    """Returns the vectors that an operation overwrites as a whole."""
    match operation:
        case Combine(to=to) | Multiply(to=to):
            return frozenset((to,))
        case Swap(one=one, other=other):
            return frozenset((one, other))
        case Evaluate(segments=segments):
            return frozenset(segment.vector for segment in segments)
        case _:
            return frozenset()


def n_vectors(operation: Operation) -> int:
    """Returns how many vectors an operation on vectors alone reads and writes, as often as it does."""
    match operation:
        case Combine(terms=terms):
            return len(terms) + 1
        case Dots(left=left, right=right):
            return len(left) + len(right)
        case Multiply():
            return 3
        case Swap():
            return 4
        case _:
            return 1


def n_scalars(operation: Operation) -> int:
    """Returns the number of scalars that an operation gives."""
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
    """Returns the number of scalars of each shard for a request: those of all operations but `Evaluate`."""
    return sum(n_scalars(one) for one in request if not isinstance(one, Evaluate))


def evaluation_in(request: Request) -> Evaluate | None:
    """Returns the evaluation among the operations, if there is one."""
    return next((operation for operation in request if isinstance(operation, Evaluate)), None)


def join_scalars(request: Request, answers: Sequence[Scalars], losses: Scalars = ()) -> Scalars:
    """Returns the scalars of a request, from those of the shards and the replicas.

    Args:
        request: its operations.
        answers: of each shard, in the order of the shards: the scalars of all operations but `Evaluate`.
        losses: those of `Evaluate`.
    """
    if len(answers) == 1:
        before = itertools.takewhile(lambda operation: not isinstance(operation, Evaluate), request)
        first = sum(map(n_scalars, before)) if losses else 0
        return (*answers[0][:first], *losses, *answers[0][first:])
    found: list[float] = []
    position = 0
    for operation in request:
        if isinstance(operation, Evaluate):
            found += losses
            continue
        stop = position + n_scalars(operation)
        of_shards = [answer[position:stop] for answer in answers]
        add = _largest if isinstance(operation, Largest) else exact_sum
        found += map(add, zip(*of_shards, strict=True))
        position = stop
    return tuple(found)


def exact_sum(scalars: Sequence[float]) -> float:
    """Returns the exact sum, rounded once; NaN and infinity propagate, where `fsum` would raise."""
    return math.fsum(scalars) if all(map(math.isfinite, scalars)) else sum(scalars)


def _largest(scalars: Sequence[float]) -> float:
    return math.nan if any(math.isnan(scalar) for scalar in scalars) else max(scalars)


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """Portions `[first, first + count)` that one replica computes together; their gradient is sent once."""

    segment: int
    first: int
    count: int


def work_units_of(evaluate: Evaluate, length: int) -> tuple[WorkUnit, ...]:
    """Returns the work units of an evaluation: `length` portions each, fewer at the end of a segment.

    They depend on the request alone, never on who computes, and so does the order of sums.
    """
    return tuple(
        WorkUnit(n, first, min(length, segment.first + segment.count - first))
        for n, segment in enumerate(evaluate.segments)
        for first in range(segment.first, segment.first + segment.count, length)
    )


@dataclass(frozen=True, slots=True)
class Iterated:
    """The end of an iteration; only for display.

    Args:
        iteration: the number of iterations done.
        loss: the function's value.
        gradient_norm: the largest absolute value in its gradient.
        step: of the line search, as a multiple of the direction.
        evaluations: their number so far.
        note: anything unusual, in a few words.
    """

    iteration: int
    loss: float
    gradient_norm: float
    step: float
    evaluations: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a method: "converged" to its tolerances, "stopped" at a limit or where no step descends any
    more, or "failed" before any gain. `reason` is one sentence.
    """

    kind: Literal["converged", "stopped", "failed"]
    reason: str


Steps: TypeAlias = Generator[Request | Iterated, Scalars, Outcome]
"""A running method: it yields requests and is sent their scalars; for an `Iterated` it is sent `()`.

Its requests must depend on the scalars alone: an interrupted run is repeated from its journal.
"""


@dataclass(frozen=True, slots=True)
class Portions:
    """The data in portions of `size` examples, fewer in the last one of an epoch.

    Portions are numbered through all epochs, `per_epoch` in each.
    """

    examples: int
    size: int

    @property
    def per_epoch(self) -> int:
        """The number of portions of the whole data."""
        return -(-self.examples // self.size)

    def place(self, portion: int) -> tuple[int, int, int]:
        """Returns (epoch, start, stop): examples `[start, stop)` in the order of that epoch."""
        epoch, n = divmod(portion, self.per_epoch)
        return epoch, n * self.size, min((n + 1) * self.size, self.examples)

    def count(self, first: int, count: int) -> int:
        """Returns the number of examples in portions `[first, first + count)`."""
        return self._before(first + count) - self._before(first)

    def _before(self, portion: int) -> int:
        epoch, n = divmod(portion, self.per_epoch)
        return epoch * self.examples + n * self.size
