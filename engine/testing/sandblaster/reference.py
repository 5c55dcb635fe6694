"""The naive reference: the same method in one process, without faults, over the same slices.

The order of sums follows from the requests alone, so that every scalar of a run and every vector in a
checkpoint must have the same bits as here, whatever has died (I6, I10).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from partita.engine.protocol.commands import (
    POINT,
    Evaluate,
    Iterated,
    Largest,
    Outcome,
    Request,
    Scalars,
    Steps,
    n_scalars,
)
from partita.engine.testing.layout import Layout
from partita.engine.testing.sandblaster.function import Function
from partita.engine.testing.vectors import Vector, Vectors, added, operate


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation's result: each segment's gradient, all machines' numbers in a row; and its scalars."""

    gradients: tuple[Vector, ...]
    scalars: Scalars


def evaluate(function: Function, x: Vector, asked: Evaluate, unit_size: int) -> Evaluated:
    """Evaluates portion after portion in each work unit, and adds the work units of a segment two by two."""
    gradients, scalars = [], []
    for segment in asked.segments:
        stop = segment.first + segment.count
        found = [
            function.unit(x, first, min(unit_size, stop - first))
            for first in range(segment.first, stop, unit_size)
        ]
        wholes = [tuple([number for piece in pieces for number in piece]) for pieces, _, _ in found]
        gradients.append(two_by_two(wholes) if wholes else (0.0,) * len(x))
        scalars.append(math.fsum(loss for _, losses, _ in found for loss in losses))
        scalars.append(float(sum(sum(right) for _, _, right in found)))
    return Evaluated(tuple(gradients), tuple(scalars))


def two_by_two(vectors: Sequence[Vector]) -> Vector:
    """Adds neighbours, then the neighbours of the sums; a vector without one stays as it is."""
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=False)
        vectors = [added(one, other) for one, other in pairs] + list(vectors[len(vectors) & ~1 :])
    return vectors[0]


class Reference:
    """A method, played to its end.

    Attributes:
        requests: those of the method.
        scalars: the results of each request.
        states: every shard's vectors before the first request, and after each.
        iterations: the reported ones.
        behind: the number of requests before each of them.
        outcome: the end of the method.
    """

    def __init__(
        self, begin: Callable[[], Steps], function: Function, layout: Layout, *, unit_size: int
    ) -> None:
        self._function, self._layout, self._unit_size = function, layout, unit_size
        self.requests: list[Request] = []
        self.scalars: list[Scalars] = []
        self.states: list[dict[str, Vectors]] = [layout_start(function, layout)]
        self.iterations: list[Iterated] = []
        self.behind: list[int] = []
        self.outcome: Outcome = self._play(begin())

    def _play(self, steps: Steps) -> Outcome:
        scalars: Scalars | None = None
        while True:
            try:
                asked = next(steps) if scalars is None else steps.send(scalars)
            except StopIteration as ended:
                outcome: Outcome = ended.value
                return outcome
            if isinstance(asked, Iterated):
                self.iterations.append(asked)
                self.behind.append(len(self.requests))
                scalars = ()
                continue
            scalars = self._do(asked)
            self.requests.append(asked)
            self.scalars.append(scalars)

    def _do(self, request: Request) -> Scalars:
        state = {shard: dict(vectors) for shard, vectors in self.states[-1].items()}
        found: list[float] = []
        for operation in request:
            if isinstance(operation, Evaluate):
                found += self._evaluate(state, operation)
                continue
            answers = [operate(state[shard], operation, size) for shard, size in self._layout.sizes.items()]
            for n in range(n_scalars(operation)):
                of_shards = [answer[n] for answer in answers]
                found.append(max(of_shards) if isinstance(operation, Largest) else math.fsum(of_shards))
        self.states.append(state)
        return tuple(found)

    def _evaluate(self, state: dict[str, Vectors], asked: Evaluate) -> Scalars:
        x = tuple(number for vectors in state.values() for number in vectors[POINT])
        done = evaluate(self._function, x, asked, self._unit_size)
        for segment, gradient in zip(asked.segments, done.gradients, strict=True):
            for shard, slice_ in cut(gradient, self._layout).items():
                state[shard][segment.vector] = slice_
        return done.scalars


def layout_start(function: Function, layout: Layout) -> dict[str, Vectors]:
    """The vectors of the shards when a run begins: the point alone."""
    return {shard: {POINT: slice_} for shard, slice_ in cut(function.start, layout).items()}


def cut(whole: Vector, layout: Layout) -> dict[str, Vector]:
    """The shards' slices of a vector of all machines' numbers in a row."""
    slices, start = {}, 0
    for shard, size in layout.sizes.items():
        slices[shard] = whole[start : start + size]
        start += size
    return slices
