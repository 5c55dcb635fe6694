"""Finds out which library computes a matrix product fastest: the one place where a clock decides that.

Only a calibration asks, on a quiet machine; the result is part of the cluster that it describes, and so of
every plan for it. A library replaces the fixed rule's only if it computes the same within rounding, and is
faster by a margin in each of several rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Final, TypeVar

import msgspec
import numpy as np
import psutil

from partita.engine.kernels.kernel import Array, Call
from partita.engine.kernels.products.blas import blas_on_one_thread
from partita.engine.kernels.products.product import product_by
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.numerics import aligned
from partita.partitioner.cluster.products import LIBRARIES, Choice, ProductShape

Clock = Callable[[], float]
K = TypeVar("K")
"""A choice: a library with its threads, or the form of a tile."""

ROUNDS: Final = 5
MARGIN: Final = 0.05
"""Fraction of the time of the fixed rule's choice that another choice must save, in every round."""
ROUND_S: Final = 0.004
"""Seconds for which each choice computes the product in a round; its quickest call counts."""
MOST_SPREAD: Final = 1.25
"""Ratio between the rounds of the rule's choice above which somebody else uses the machine."""
REST_S: Final = 0.02
"""Seconds of rest after calls on several threads: torch's threads stay awake for 10 ms (measured once)."""
BUSY_CORES: Final = 0.25
"""Processor time of others, in cores, above which the machine is busy."""
_LOOK_S: Final = 0.3


class ProductMeasurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of a product by each library.

    Args:
        shape: shape of the product.
        seconds: seconds of the median round, by library and number of threads.
        choice: the library and the number of threads that compute it from now on.
    """

    shape: ProductShape
    seconds: tuple[tuple[Choice, float], ...]
    choice: Choice


def busy(*, look_s: float = _LOOK_S) -> str | None:
    """Finds out whether others use this machine.

    Returns:
        None if the machine is quiet; else a sentence.
    """
    cores = psutil.cpu_count() or 1
    used = psutil.cpu_percent(interval=look_s) / 100 * cores
    if used <= BUSY_CORES:
        return None
    return (
        f"others use {used:.1f} of this machine's {cores} cores, and products of matrices are measured "
        "on a quiet machine only; the fixed rule holds for those that were never measured; calibrate again "
        "when it is quiet"
    )


def measure_product(
    shape: ProductShape,
    usual: Choice,
    *,
    clock: Clock = time.perf_counter,
    rest: Callable[[float], None] = time.sleep,
) -> ProductMeasurement | None:
    """Measures a product by every library, on one thread and on all.

    Args:
        shape: shape of the product.
        usual: the fixed rule's choice.
        clock: returns seconds.
        rest: sleeps for so many seconds.

    Returns:
        None where the machine was not quiet meanwhile.

    Raises:
        ArithmeticError: two libraries compute different results.
    """
    choices = _choices(shape, usual)
    a = _drawn(shape.m, shape.k, shape.layout[0], shape.precision)
    b = _drawn(shape.k, shape.n, shape.layout[1], shape.precision)
    outs = {choice: aligned((shape.m, shape.n), a.dtype) for choice in choices}
    with blas_on_one_thread(), closing(ThreadPool(shape.threads)) as pool:
        calls = {choice: product_by(choice, a, b, out, pool=pool) for choice, out in outs.items()}
        for call in calls.values():
            call()  # what is done once (pages, threads, code) is not counted
        _verify(shape, outs, np.abs(a) @ np.abs(b))
        seconds = rounds(
            calls, clock=clock, before=lambda choice: rest(REST_S) if choice.threads > 1 else None
        )
    chosen = chosen_of(seconds, usual)
    if chosen is None:
        return None
    typical = tuple((choice, float(np.median(taken))) for choice, taken in seconds.items())
    return ProductMeasurement(shape=shape, seconds=typical, choice=chosen)


def rounds(
    calls: Mapping[K, Call], *, clock: Clock, before: Callable[[K], object] = lambda choice: None
) -> dict[K, list[float]]:
    """Returns the quickest call of each choice in each round; in a round the choices take turns.

    Args:
        calls: the calls, by choice.
        clock: returns seconds.
        before: called with a choice before its turn.
    """
    found: dict[K, list[float]] = {choice: [] for choice in calls}
    for _ in range(ROUNDS):
        for choice, call in calls.items():
            before(choice)
            quickest, until = float("inf"), clock() + ROUND_S
            while (began := clock()) < until or quickest == float("inf"):
                call()
                quickest = min(quickest, clock() - began)
            found[choice].append(quickest)
    return found


def chosen_of(seconds: Mapping[K, Sequence[float]], usual: K) -> K | None:
    """Chooses by the seconds of every round.

    Args:
        seconds: seconds of each round, by choice.
        usual: the fixed rule's choice, which stays unless another one is faster by the margin in every round.

    Returns:
        None where the rounds of the usual choice are too far apart to mean anything.
    """
    own = seconds[usual]
    if max(own) > MOST_SPREAD * min(own):
        return None
    faster = [
        choice
        for choice, taken in seconds.items()
        if all(other <= (1 - MARGIN) * one for other, one in zip(taken, own, strict=True))
    ]
    return min(faster, key=lambda choice: float(np.median(seconds[choice])), default=usual)


def _choices(shape: ProductShape, usual: Choice) -> tuple[Choice, ...]:
    """All choices, the usual one first."""
    all_of_them = [Choice(library, threads) for library in LIBRARIES for threads in {1, shape.threads}]
    return tuple(dict.fromkeys([usual, *all_of_them]))


def _verify(shape: ProductShape, outs: Mapping[Choice, Array], sizes: Array) -> None:
    """Refuses libraries whose results differ by more than rounding. Raises ArithmeticError.

    Args:
        shape: shape of the product.
        outs: results, by choice.
        sizes: sums of the absolute values of all terms, by which rounding is bounded.
    """
    first, *others = outs.items()
    allowed = 2 * (shape.k + 1) * np.finfo(first[1].dtype).eps * sizes
    for choice, out in others:
        if not (np.abs(out - first[1]) <= allowed).all():
            raise ArithmeticError(
                f"{first[0].library} and {choice.library} do not agree on the product {shape}: they differ "
                "by more than rounding; report this with the versions that `partita calibrate` prints"
            )


def _drawn(rows: int, columns: int, layout: str, precision: str) -> Array:
    """Draws a matrix quickly: a few normal numbers, repeated."""
    drawn = np.random.default_rng(0).standard_normal(4093).astype(precision)
    matrix = aligned((rows, columns) if layout == "N" else (columns, rows), np.dtype(precision))
    matrix[...] = np.resize(drawn, matrix.shape)
    return matrix if layout == "N" else matrix.T
