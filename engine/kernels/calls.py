"""Prepared calls: bound to their arrays, compiled for them, spread over threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numba
import numpy as np

from partita.engine.kernels.kernel import Array, Call, no_op
from partita.engine.kernels.thread_pool import ThreadPool
from partita.partitioner.cluster.threads import WorkKind


def bound(loop: Callable[..., None], *arguments: Any) -> Call:
    """Prepares a compiled loop with these arguments, and compiles it for their types."""
    loop.compile(tuple(map(numba.typeof, arguments)))  # type: ignore[attr-defined]
    return partial(loop, *arguments)


def split_rows(pool: ThreadPool, loop: Callable[..., None], *arrays: Array) -> Call:
    """Prepares a pass over the rows of arrays: the first axis is split over the threads of the pool."""
    whole = bound(loop, *arrays)
    n_rows, numbers = len(arrays[0]), float(arrays[0].size)
    if pool.pieces(n_rows, numbers, kind="numbers") <= 1:
        return whole

    def work(start: int, stop: int) -> None:
        loop(*(array[start:stop] for array in arrays))

    return lambda: pool.split(0, n_rows, work, operations=numbers, kind="numbers")


def split_spans(
    pool: ThreadPool,
    spans: Sequence[tuple[int, int]],
    work: Callable[[int, int], None],
    *,
    operations: float,
    kind: WorkKind = "loop",
) -> Call:
    """Prepares `work(start, stop)` for spans `[start, stop)`, each split over the threads of the pool.

    An empty span is worked on now, which compiles what `work` calls.
    """
    for start, _ in spans[:1]:
        work(start, start)

    def call() -> None:
        for start, stop in spans:
            pool.split(start, stop, work, operations=operations, kind=kind)

    return call


def sequence(*calls: Call) -> Call:
    """One call that makes these, one after another."""
    needed = tuple(call for call in calls if call is not no_op)
    if not needed:
        return no_op
    if len(needed) == 1:
        return needed[0]

    def call() -> None:
        for one in needed:
            one()

    return call


def accumulated(write: Callable[[Sequence[Array]], Call], out: Sequence[Array]) -> Call:
    """Prepares a call that adds to arrays what `write` would write into them, through scratch arrays."""
    terms = [np.empty_like(array) for array in out]
    call = write(terms)

    def add() -> None:
        call()
        for array, term in zip(out, terms, strict=True):
            np.add(array, term, out=array)

    return add
