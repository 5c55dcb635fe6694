"""Finds out how much work a thread needs to be worth waking: a clock decides that here, and nowhere else.

For each kind of work, calls of growing size are timed on one thread and on several, in turn. In each call the
first thread has just written, or read, what the others share: so it is where a network is trained. Only a
calibration asks, on a quiet machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from partita.engine.kernels.calls import sequence
from partita.engine.kernels.kernel import Array, Call
from partita.engine.kernels.products.blas import blas_on_one_thread
from partita.engine.kernels.products.product import product_by
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.numerics import aligned, compiled
from partita.engine.profile.products import MARGIN, MOST_SPREAD, ROUND_S, ROUNDS, Clock
from partita.partitioner.cluster.products import Choice, Library, Rule
from partita.partitioner.cluster.threads import NEVER, UPDATE_OPERATIONS, ThreadShares, WorkKind

_BATCH: Final = 32
_OPERATIONS: Final = 16
"""Operations for each number of a loop."""
_STEPS: Final = 3
"""Sizes from that of the fixed rule on, and below it, each twice as large as the one before."""


class _Pair(NamedTuple):
    """A call on one thread and the same on several, and the work of each of these.

    Args:
        share: work of a thread.
        alone, together: the calls.
    """

    share: float
    alone: Call
    together: Call


def measure_shares(
    usual: ThreadShares, rule: Rule, *, threads: int, source: str, clock: Clock = time.perf_counter
) -> ThreadShares | None:
    """Measures the least work of each thread.

    Args:
        usual: the fixed rule's. What decides bits stays as it is there.
        rule: the fixed rule of products.
        threads: those of a machine, at least 2.
        source: processor and time, in words.
        clock: returns seconds.

    Returns:
        None where the machine was not quiet meanwhile.
    """
    found: dict[WorkKind, float] = {}
    quick = ThreadShares(loop=0)
    with blas_on_one_thread(), closing(ThreadPool(threads, shares=quick)) as pool:
        makers: dict[WorkKind, Callable[[float], _Pair]] = {
            "product": lambda share: _product(rule, share, pool, "float32"),
            "bfloat16": lambda share: _product("torch", share, pool, "bfloat16"),
            "gradient": lambda share: _gradient(rule, share, pool),
            "loop": lambda share: _loop(share, pool),
            "numbers": lambda share: _pass(share, pool),
        }
        for kind, make in makers.items():
            shares = _ladder(getattr(usual, kind))
            least = least_share(map(make, shares), clock=clock)
            if least is None:
                return None
            found[kind] = least
    return replace(usual, **found, source=source)


def _ladder(usual: float) -> Iterator[float]:
    """Shares around that of the fixed rule, in ascending order."""
    return (usual * 2.0**step for step in range(-_STEPS, _STEPS))


def least_share(pairs: Sequence[_Pair] | Iterator[_Pair], *, clock: Clock) -> float | None:
    """Returns the smallest share from which on several threads are faster by the margin, in every round.

    Args:
        pairs: calls by ascending shares.
        clock: returns seconds.

    Returns:
        `NEVER` where they are not at the largest share; None where the rounds on one thread are too far
        apart.
    """
    least = NEVER
    for pair in pairs:
        alone, together = _rounds(pair, clock)
        if max(alone) > MOST_SPREAD * min(alone):
            return None
        gains = all(both <= (1 - MARGIN) * one for one, both in zip(alone, together, strict=True))
        if not gains:
            least = NEVER
        elif least == NEVER:
            least = pair.share
    return least


def _rounds(pair: _Pair, clock: Clock) -> tuple[list[float], list[float]]:
    """The quickest call of each in every round."""
    found: tuple[list[float], list[float]] = [], []
    for call in (pair.alone, pair.together):
        call()  # what is done once is not counted
    for _ in range(ROUNDS):
        for call, seconds in zip((pair.alone, pair.together), found, strict=True):
            quickest, until = float("inf"), clock() + ROUND_S
            while (began := clock()) < until or quickest == float("inf"):
                call()
                quickest = min(quickest, clock() - began)
            seconds.append(quickest)
    return found


def _product(library: Library, share: float, pool: ThreadPool, precision: str) -> _Pair:
    """A layer's weights, which the first thread has just written, times its input."""
    nodes = _nodes(share * pool.threads)
    weight, source = (_filled((nodes, nodes), precision) for _ in range(2))
    x, out = (_filled((nodes, _BATCH), precision) for _ in range(2))
    alone, together = (
        sequence(lambda: np.copyto(weight, source), product_by(Choice(library, n), weight, x, out, pool=pool))
        for n in (1, pool.threads)
    )
    return _Pair(share, alone, together)


def _gradient(library: Library, share: float, pool: ThreadPool) -> _Pair:
    """A weight gradient and its update, each thread for rows of its own; the first has read the weights."""
    nodes = _nodes(share * pool.threads, more=UPDATE_OPERATIONS)
    weight, gradient = (_filled((nodes, nodes), "float32") for _ in range(2))
    grad, x, out = (_filled((nodes, _BATCH), "float32") for _ in range(3))
    forward = product_by(Choice(library, 1), weight, x, out, pool=pool)
    cuts = [nodes * n // pool.threads for n in range(pool.threads + 1)]
    parts = [slice(*cuts[n : n + 2]) for n in range(pool.threads)]
    alone = pool.at_most(1)
    multiply = [product_by(Choice(library, 1), grad[part], x.T, gradient[part], pool=alone) for part in parts]

    def work(start: int, stop: int) -> None:
        for n in range(start, stop):
            multiply[n]()
            _descend(weight[parts[n]].reshape(-1), gradient[parts[n]].reshape(-1))

    return _shared(share, forward, work, pool)


def _loop(share: float, pool: ThreadPool) -> _Pair:
    """A loop with some arithmetic for each of the numbers that the first thread has just written."""
    numbers, source = (_filled((pool.threads, int(share) // _OPERATIONS), "float32") for _ in range(2))

    def work(start: int, stop: int) -> None:
        for row in range(start, stop):
            _smooth(numbers[row])

    return _shared(share, lambda: np.copyto(numbers, source), work, pool)


def _pass(share: float, pool: ThreadPool) -> _Pair:
    """An update by a gradient that the first thread has just written."""
    values, gradient, source = (_filled((pool.threads, int(share)), "float32") for _ in range(3))

    def work(start: int, stop: int) -> None:
        for row in range(start, stop):
            _descend(values[row], gradient[row])

    return _shared(share, lambda: np.copyto(gradient, source), work, pool)


def _shared(share: float, before: Call, work: Callable[[int, int], None], pool: ThreadPool) -> _Pair:
    """Pairs all of the work on the first thread with its share there; `before` runs first in both."""
    whole, cut = (lambda: work(0, pool.threads)), (lambda: pool.split(0, pool.threads, work))
    return _Pair(share, sequence(before, whole), sequence(before, cut))


def _nodes(operations: float, *, more: float = 0) -> int:
    """Nodes and inputs of a layer whose product has so many operations, with some more for each weight."""
    return max(int((operations / (2 * _BATCH + more)) ** 0.5), 1)


def _filled(shape: tuple[int, int], precision: str) -> Array:
    """Ones in memory of their own."""
    found = aligned(shape, np.dtype(np.uint16 if precision == "bfloat16" else precision))
    found.fill(0x3F80 if precision == "bfloat16" else 1)
    return found


@compiled
def _descend(values: Array, gradient: Array) -> None:
    """Subtracts a little of the gradient, as SGD does."""
    for n in range(values.size):
        values[n] -= np.float32(1e-9) * gradient[n]


@compiled
def _smooth(numbers: Array) -> None:
    """Replaces each number by one that takes `_OPERATIONS` operations."""
    for n in range(numbers.size):
        x = numbers[n]
        for _ in range(8):
            x = x * np.float32(0.999) + np.float32(0.001)
        numbers[n] = x
