"""Sums of vectors in the order that each algorithm promises, computed without its machines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.engine.protocol.exchange import Algorithm, Hierarchical, Numbers, Ring, Server, Tree
from tests.protocol.exchange.network import Vector


def reference(algorithm: Algorithm, vectors: Sequence[Vector], machines: Sequence[str]) -> Vector:
    """The sum of the vectors, to the bit, as the docstring of the algorithm says it."""
    match algorithm:
        case Ring():
            return _ring(vectors)
        case Tree():
            return _pairwise(vectors)
        case Server():
            return _in_order(vectors)
        case Hierarchical():
            labels = list(dict.fromkeys(machines))
            return _ring(
                [
                    _in_order([v for v, m in zip(vectors, machines, strict=True) if m == label])
                    for label in labels
                ]
            )
    raise AssertionError(algorithm)


def _ring(vectors: Sequence[Vector]) -> Vector:
    n, length = len(vectors), len(vectors[0])
    total = np.empty(length, np.float32)
    for segment in range(n):
        start, stop = Numbers(length).segment(segment, n)
        order = [vectors[(segment + 1 + k) % n][start:stop] for k in range(n)]
        total[start:stop] = _in_order(order)
    return total


def _in_order(vectors: Sequence[Vector]) -> Vector:
    total = vectors[0].copy()
    for vector in vectors[1:]:
        total += vector
    return total


def _pairwise(vectors: Sequence[Vector]) -> Vector:
    """The sum of a power of two of the vectors from the left, plus that of the rest."""
    level = list(vectors)
    while len(level) > 1:
        pairs = [level[n] + level[n + 1] for n in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]
