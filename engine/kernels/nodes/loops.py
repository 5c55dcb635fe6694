"""Compiles the loops that run a node definition, with the examples innermost.

Loops are cached until the process ends.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from partita.engine.kernels.nodes import ir, vectors
from partita.engine.kernels.nodes.backward import backward_of
from partita.engine.kernels.nodes.generated import Names, ready
from partita.engine.kernels.nodes.reader import read_function
from partita.engine.kernels.nodes.source import meaning, written
from partita.engine.kernels.nodes.sums import weighted_sum
from partita.engine.kernels.nodes.vectors import Signature
from partita.engine.numerics import master, storage

Array = npt.NDArray[Any]
Function = Callable[..., Any]


@dataclass(frozen=True)
class BackwardLoops:
    """The loops that run `downward`, as `vectors.backward_text` writes them.

    Attributes:
        backward_input: of the errors.
        backward_parameters: of the gradients; None if there are no parameters.
    """

    backward_input: Callable[..., None]
    backward_parameters: Callable[..., None] | None


@dataclass(frozen=True)
class SumLoops:
    """The loops of a node that takes a weighted sum, besides the products.

    Attributes:
        weight: which of the parameters is the weight.
        finish: as `vectors.finish_text` writes it.
        backward_sum: as `vectors.backward_sum_text` writes it; None where the gradient passes unchanged.
        keeps_sums: whether `backward_sum` reads the sums.
    """

    weight: int
    finish: Callable[..., None]
    backward_sum: Callable[..., None] | None
    keeps_sums: bool


F = TypeVar("F", bound=Callable[..., Any])


def remembered(make: F) -> F:
    """Keeps results for functions, which come first, for as long as the names in these mean the same."""

    @lru_cache(maxsize=128)
    def kept(meant: Hashable, *given: Any) -> Any:
        return make(*given)

    @wraps(make)
    def found(upward: Function, downward: Function | None, *given: Any) -> Any:
        return kept((meaning(upward), meaning(downward)), upward, downward, *given)

    vars(found)["cache_clear"] = kept.cache_clear
    return cast(F, found)


def read_upward(upward: Function, signature: Signature) -> ir.Function:
    """Reads a function that returns a number.

    Raises:
        Unsupported: it is not understood.
    """
    function = read_function(_written(upward), signature.given)
    if function.returns_tuple or function.are_arrays[0]:
        raise ir.Unsupported("a result that is not one number")
    return function


def read_downward(upward: Function, downward: Function | None, signature: Signature) -> ir.Function:
    """Reads a function that returns the gradients, or derives it.

    Raises:
        Unsupported: it is not understood, or cannot be derived for loops.
    """
    if downward is None:
        return backward_of(read_upward(upward, signature), signature.parameters)
    function = read_function(_written(downward), [*signature.given, ir.STATE, ir.ERROR])
    wanted = (True, *(kind == "e" for _, kind in signature.parameters))
    if function.are_arrays != wanted or not function.returns_tuple:
        raise ir.Unsupported("results of other shapes")
    return function


def _written(function: Function) -> Any:
    source = written(function)
    if source is None:
        raise ir.Unsupported("a source that cannot be read")
    return source


@remembered
def sum_loops(
    upward: Function, downward: Function | None, signature: Signature, trained: bool
) -> SumLoops | None:
    """Compiles the functions of a node that takes a weighted sum; None if they compute something else.

    Raises:
        Unsupported: they are not understood.
        NotCompiled: they cannot be compiled.
    """
    up = read_upward(upward, signature)
    down = read_downward(upward, downward, signature) if trained else None
    found = weighted_sum(up, down, signature.parameters)
    if found is None:
        return None
    dtype, wide = storage(signature.precision), master(signature.precision)
    flats = [np.empty(0, dtype) for _, kind in signature.parameters if kind == "n"]
    state, sums = np.empty((0, 0), dtype), (np.empty((0, 0), wide),)
    names = ready(
        vectors.finish_text(found, signature),
        lambda names: names["finish"](0, *flats, *(sums if dtype != wide else ()), state, 0),
    )
    weight = [name for name, _ in signature.parameters].index(found.weight)
    if down is None or found.passes:
        return SumLoops(weight, names["finish"], None, False)
    kept = sums if found.keeps_sums else ()
    back = ready(
        vectors.backward_sum_text(found, signature),
        lambda names: names["backward_sum"](0, *flats, *kept, state, state, state, 0),
    )
    return SumLoops(weight, names["finish"], back["backward_sum"], found.keeps_sums)


@remembered
def up_loop(upward: Function, downward: None, signature: Signature) -> Callable[..., None]:
    """Compiles `upward` and the loop around it, as `vectors.upward_text` writes it.

    Raises:
        Unsupported: it cannot be written with the examples innermost.
        NotCompiled: it cannot be compiled.
    """
    table, flats, state, _ = _nothing(signature)

    def warm(names: Names) -> None:
        names["forward"](*table, *flats, state, 0, 0)

    text = vectors.upward_text(read_upward(upward, signature), signature)
    return cast(Callable[..., None], ready(text, warm)["forward"])


@remembered
def down_loops(upward: Function, downward: Function | None, signature: Signature) -> BackwardLoops:
    """Compiles `downward`, or what is derived from `upward`, and the loops around it; as `up_loop`."""
    table, flats, state, sums = _nothing(signature)

    def warm(names: Names) -> None:
        bounds, errors = np.empty(0, np.int32), np.empty((0, 0), master(signature.precision))
        names["backward_input"](*table, bounds, bounds, *flats, state, state, errors, 0, 0)
        if sums:
            names["backward_parameters"](*table, *flats, state, state, *sums, 0, 0, 0, 0)

    names = ready(vectors.downward_text(read_downward(upward, downward, signature), signature), warm)
    return BackwardLoops(names["backward_input"], names.get("backward_parameters"))


def _nothing(signature: Signature) -> tuple[tuple[Any, ...], tuple[Array, ...], Array, tuple[Array, ...]]:
    """Makes arguments without a node: table, parameters, states, gradients."""
    dtype, n = storage(signature.precision), len(signature.parameters)
    state, flat = np.empty((0, 0), dtype), np.empty(0, dtype)
    short, long = np.empty(0, np.int32), np.empty(0, np.int64)
    table = (state, flat, short, long, short, long, 0)
    return table, (flat,) * n, state, (np.empty(0, master(signature.precision)),) * n
