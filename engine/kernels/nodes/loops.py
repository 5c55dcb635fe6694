"""Compiles the loops that run a node definition, in the fastest form in which its functions can be written.

The first form has the examples innermost. The second is the function unchanged, as text that can be cached;
the third the function's object in this process. Compiling the last form also reports why a function cannot be
compiled, and on which of the user's lines.

Loops are cached until the process ends.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from partita.engine.kernels.nodes import ir, scalars, vectors
from partita.engine.kernels.nodes.comparison import Different, difference
from partita.engine.kernels.nodes.compiler import CompiledFunction, Uncompilable, compile_function
from partita.engine.kernels.nodes.generated import Names, NotCompiled, ready
from partita.engine.kernels.nodes.plays import backward_sum_play, downward_play, finish_play, upward_play
from partita.engine.kernels.nodes.portable import portable
from partita.engine.kernels.nodes.reader import read_function
from partita.engine.kernels.nodes.source import first_line, meaning, written
from partita.engine.kernels.nodes.sums import WeightedSum, weighted_sum
from partita.engine.kernels.nodes.vectors import Signature
from partita.engine.numerics import master, storage

Array = npt.NDArray[Any]
_NUMBERS = (types.Float, types.Integer, types.Boolean)
"""Types that compiled functions may return, or have in arrays that they return."""


@dataclass(frozen=True)
class ForwardLoop:
    """The loop that runs `upward`.

    Attributes:
        forward: as `vectors.upward_text` writes it.
        in_vectors: whether the examples are innermost.
    """

    forward: Callable[..., None]
    in_vectors: bool


@dataclass(frozen=True)
class BackwardLoops:
    """The loops that run `downward`.

    Attributes:
        backward_input: as `vectors.downward_text` writes it.
        backward_parameters: the same; None if there are no parameters.
        in_vectors: whether the examples are innermost.
    """

    backward_input: Callable[..., None]
    backward_parameters: Callable[..., None] | None
    in_vectors: bool


@dataclass(frozen=True)
class SumLoops:
    """The loops of a node that takes a weighted sum, besides the products.

    Attributes:
        weight: which of the parameters is the weight.
        finish: as `vectors.finish_text` writes it.
        backward_sum: as `vectors.backward_sum_text` writes it; None where the gradient passes unchanged.
    """

    weight: int
    finish: Callable[..., None]
    backward_sum: Callable[..., None] | None


F = TypeVar("F", bound=Callable[..., Any])


def _remembered(make: F) -> F:
    """Keeps loops of functions for as long as the names in these mean the same."""

    @lru_cache(maxsize=128)
    def kept(meant: Hashable, *given: Any) -> Any:
        return make(*given)

    @wraps(make)
    def found(*given: Any) -> Any:
        *functions, _signature = given
        return kept(tuple(map(meaning, functions)), *given)

    vars(found)["cache_clear"] = kept.cache_clear
    return cast(F, found)


@_remembered
def sum_loops(
    upward: Callable[..., Any], downward: Callable[..., Any] | None, signature: Signature
) -> SumLoops | None:
    """Compiles the two functions for a node that takes a weighted sum; None if they compute something else.

    Raises:
        Different: they give other numbers than the functions do in plain Python.
    """
    loops = _sum_loops(upward, downward, signature)
    if loops is not None:
        differences = [difference(upward, signature, "upward", finish_play(loops.finish, loops.weight))]
        if downward is not None:
            played = backward_sum_play(loops.backward_sum, loops.weight)
            differences.append(difference(downward, signature, "downward", played))
        _settle(differences, signature, lambda exact: sum_loops(upward, downward, exact))
    return loops


def _sum_loops(
    upward: Callable[..., Any], downward: Callable[..., Any] | None, signature: Signature
) -> SumLoops | None:
    sources = written(upward), None if downward is None else written(downward)
    if sources[0] is None or (downward is not None and sources[1] is None):
        return None
    try:
        up = read_function(sources[0], signature.given)
        down = None
        if sources[1] is not None:
            down = read_function(sources[1], [*signature.given, ir.STATE, ir.ERROR])
        found = weighted_sum(up, down, signature.parameters)
        return None if found is None else _loops_of_sum(found, up, down, signature)
    except (ir.Unsupported, NotCompiled):
        return None


def _loops_of_sum(
    found: WeightedSum, up: ir.Function, down: ir.Function | None, signature: Signature
) -> SumLoops:
    dtype = storage(signature.precision)
    flats = [np.empty(0, dtype) for _, kind in signature.parameters if kind == "n"]
    state = np.empty((0, 0), dtype)
    sums = (np.empty((0, 0), np.float32),) if signature.precision == "bfloat16" else ()
    names = ready(
        vectors.finish_text(found, up, signature),
        lambda names: names["finish"](0, *flats, *sums, state, 0),
    )
    weight = [name for name, _ in signature.parameters].index(found.weight)
    if down is None or found.passes:
        return SumLoops(weight, names["finish"], None)
    found_backward = ready(
        vectors.backward_sum_text(found, down, signature),
        lambda names: names["backward_sum"](0, *flats, state, state, state, 0),
    )
    return SumLoops(weight, names["finish"], found_backward["backward_sum"])


@_remembered
def up_loop(upward: Callable[..., Any], signature: Signature) -> ForwardLoop:
    """Compiles `upward` and the loop around it.

    Raises:
        Uncompilable: Numba refuses the function, or it does not return a number.
        Different: compiled, it gives other numbers than in plain Python.
    """
    loop = _up_loop(upward, signature)
    found = difference(upward, signature, "upward", upward_play(loop.forward))
    _settle([found], signature, lambda exact: up_loop(upward, exact))
    return loop


def _settle(
    differences: Sequence[Different | None], signature: Signature, again: Callable[[Signature], object]
) -> None:
    """Raises a difference found in float64; one found in another precision is sought in float64, `again`."""
    found = [one for one in differences if one is not None]
    if not found:
        return
    if signature.precision == "float64":
        raise found[0]
    again(replace(signature, precision="float64"))


def _up_loop(upward: Callable[..., Any], signature: Signature) -> ForwardLoop:
    table, flats, state, _ = _nothing(signature)

    def warm(names: Names) -> None:
        names["forward"](*table, *flats, state, 0, 0)

    around = scalars.upward_text(signature)
    names, in_vectors = _first_ready(upward, "upward", vectors.upward_text, around, signature, warm)
    if names is None:
        function = _compiled_for(upward, signature)
        if not isinstance(function.returns, _NUMBERS):
            reason = f"It returns {function.returns}; it must return one number, the state."
            raise Uncompilable(*first_line(upward), reason)
        names = ready(around, warm, upward=function.call)
    return ForwardLoop(names["forward"], in_vectors)


@_remembered
def down_loops(downward: Callable[..., Any], signature: Signature) -> BackwardLoops:
    """Compiles `downward` and the loops around it; as `up_loop`.

    Raises:
        Uncompilable: Numba refuses the function, or it does not return what it must.
        Different: compiled, it gives other numbers than in plain Python.
    """
    loops = _down_loops(downward, signature)
    found = difference(
        downward, signature, "downward", downward_play(loops.backward_input, loops.backward_parameters)
    )
    _settle([found], signature, lambda exact: down_loops(downward, exact))
    return loops


def _down_loops(downward: Callable[..., Any], signature: Signature) -> BackwardLoops:
    table, flats, state, sums = _nothing(signature)

    def warm(names: Names) -> None:
        bounds = np.empty(0, np.int32)
        names["backward_input"](*table, bounds, bounds, *flats, state, state, _as_sums(state), 0, 0)
        if sums:
            names["backward_parameters"](*table, *flats, state, state, *sums, 0, 0, 0, 0)

    around = scalars.downward_text(signature)
    names, in_vectors = _first_ready(downward, "downward", vectors.downward_text, around, signature, warm)
    if names is None:
        function = _compiled_for(downward, signature, more=2)
        _check_downward(downward, function, signature)
        names = ready(around, warm, downward=function.call)
    return BackwardLoops(names["backward_input"], names.get("backward_parameters"), in_vectors)


def _first_ready(
    function: Callable[..., Any],
    role: str,
    inside_out: Callable[..., str],
    around: str,
    signature: Signature,
    warm: Callable[[Names], None],
) -> tuple[Names | None, bool]:
    """Compiles the loops from text, None where that fails; also returns whether examples are innermost."""
    source = written(function)
    if source is None:
        return None, False
    try:
        return ready(inside_out(source, signature), warm), True
    except (ir.Unsupported, NotCompiled):
        text = portable(source, role)
    try:
        return (None if text is None else ready(f"{text}\n{around}", warm)), False
    except NotCompiled:
        return None, False


def _compiled_for(function: Callable[..., Any], signature: Signature, *, more: int = 0) -> CompiledFunction:
    """Compiles for parameters that cannot be written to: they are the network's own."""
    numbers = [numba.from_dtype(master(signature.precision))] * more
    try:
        return compile_function(function, (*_argument_types(signature, readonly=True), *numbers))
    except Uncompilable as refused:
        try:
            compile_function(function, (*_argument_types(signature, readonly=False), *numbers))
        except Uncompilable:
            raise refused from refused.__cause__
        reason = "It changes a parameter in place, which is the network's own; change a copy of it."
        raise Uncompilable(*first_line(function), reason) from refused


def _argument_types(signature: Signature, *, readonly: bool) -> tuple[Any, ...]:
    number = numba.from_dtype(master(signature.precision))
    numbers = types.Array(number, 1, "C", readonly=readonly)
    kinds = (numbers if kind == "e" else number for _, kind in signature.parameters)
    return (types.Array(number, 1, "C"), *kinds)


def _nothing(signature: Signature) -> tuple[tuple[Any, ...], tuple[Array, ...], Array, tuple[Array, ...]]:
    """Makes arguments without a node: table, parameters, states, gradients."""
    dtype, n = storage(signature.precision), len(signature.parameters)
    state, flat = np.empty((0, 0), dtype), np.empty(0, dtype)
    short, long = np.empty(0, np.int32), np.empty(0, np.int64)
    table = (state, flat, short, long, short, long, long, 0)
    return table, (flat,) * n, state, (np.empty(0, master(signature.precision)),) * n


def _as_sums(state: Array) -> Array:
    return np.empty((0, 0), np.float32) if state.dtype == np.uint16 else state


def _check_downward(downward: Callable[..., Any], function: CompiledFunction, signature: Signature) -> None:
    kinds = [kind for _, kind in signature.parameters]
    wanted = ["errors (an array)", *("an array" if kind == "e" else "a number" for kind in kinds)]
    returns: Any = function.returns
    is_tuple = isinstance(returns, types.BaseTuple)
    given = tuple(returns) if is_tuple else (returns,)
    fits = is_tuple and len(given) == len(wanted)
    for what, kind in zip(given, ["e", *kinds], strict=False):
        is_array = isinstance(what, types.Array) and what.ndim == 1
        fits = fits and is_array == (kind == "e") and isinstance(what.dtype if is_array else what, _NUMBERS)
    if not fits:
        raise Uncompilable(
            *first_line(downward),
            f"It returns {'the tuple ' if is_tuple else ''}({', '.join(map(str, given))}); it must return "
            f"the tuple ({', '.join(wanted)}{',' if len(wanted) == 1 else ''}): an error for each sender, "
            "then a gradient for each parameter.",
        )
