"""Operations on a shard's vectors in plain Python: for simulated shards, and for the naive reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from partita.engine.protocol.commands import Combine, Dots, Largest, Multiply, Operation, Swap
from partita.engine.testing.invariants import require

Vector: TypeAlias = tuple[float, ...]

Vectors: TypeAlias = dict[str, Vector]
"""A shard's slices by name. A slice never changes, so that a copy of the dictionary is a snapshot."""


def added(left: Sequence[float], right: Sequence[float]) -> Vector:
    """Returns the sum of two vectors, number by number."""
    return tuple([one + other for one, other in zip(left, right, strict=True)])


def operate(vectors: Vectors, operation: Operation, size: int) -> list[float]:
    """Carries out an operation on slices of so many numbers, and returns its scalars."""
    match operation:
        case Combine(to=to, terms=terms):
            total = [0.0] * size
            for factor, name in terms:
                term = _read(vectors, name)
                total = [one + factor * other for one, other in zip(total, term, strict=True)]
            vectors[to] = tuple(total)
        case Multiply(to=to, left=left, right=right):
            pairs = zip(_read(vectors, left), _read(vectors, right), strict=True)
            vectors[to] = tuple([one * other for one, other in pairs])
        case Swap(one=one, other=other):
            zeros = (0.0,) * size
            first, second = vectors.get(one, zeros), vectors.get(other, zeros)
            vectors |= {other: first, one: second}
        case Dots(left=lefts, right=rights):
            return [_dot(_read(vectors, one), _read(vectors, other)) for one in lefts for other in rights]
        case Largest(vector=vector):
            return [max(map(abs, _read(vectors, vector)), default=0.0)]
        case _:
            raise AssertionError(f"{operation} is not for a shard's vectors")
    return []


def _read(vectors: Vectors, name: str) -> Vector:
    require(name in vectors, "I7", "reads", name, "which was never written; there are", *vectors)
    return vectors[name]


def _dot(left: Vector, right: Vector) -> float:
    return sum([one * other for one, other in zip(left, right, strict=True)])
