"""Calls prepared from compiled loops: bound to their arrays, compiled for them, spread over threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numba
import numpy as np

from partita.engine.kernels.kernel import Array, Call, nothing
from partita.engine.kernels.parallel import Team


def bound(loop: Callable[..., None], *arguments: Any) -> Call:
    """A call of a compiled loop with these arguments, for whose types it is compiled now."""
    loop.compile(tuple(map(numba.typeof, arguments)))  # type: ignore[attr-defined]
    return partial(loop, *arguments)


def over_rows(team: Team, loop: Callable[..., None], *arrays: Array) -> Call:
    """As `bound`, for a loop that treats row after row: the first axis is split over the team's threads."""
    whole = bound(loop, *arrays)
    if team.threads == 1:
        return whole
    n_rows, operations = len(arrays[0]), float(arrays[0].size)

    def work(start: int, stop: int) -> None:
        loop(*(array[start:stop] for array in arrays))

    return lambda: team.split(0, n_rows, work, operations=operations)


def in_turn(*calls: Call) -> Call:
    """One call that makes these, one after another."""
    needed = tuple(call for call in calls if call is not nothing)
    if not needed:
        return nothing
    if len(needed) == 1:
        return needed[0]

    def call() -> None:
        for one in needed:
            one()

    return call


def added(write: Callable[[Sequence[Array]], Call], out: Sequence[Array]) -> Call:
    """A call that adds to arrays what `write` would write into them, by way of arrays beside them."""
    terms = [np.empty_like(array) for array in out]
    call = write(terms)

    def add() -> None:
        call()
        for array, term in zip(out, terms, strict=True):
            np.add(array, term, out=array)

    return add
