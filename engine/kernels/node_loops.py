"""The loops over nodes and examples around the compiled functions of a node definition.

What a node hears is gathered, for all examples, into a small tile `[example, edge]`; then the functions run
example after example. Parameters and gradients are flat: of one kind "e", a number for each edge in the order
of the edge table, or "n", a number for each node. Arrays are `[node, example]`.

Everything is generated for a definition, its parameters and a dtype, and kept for the life of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from partita.engine.kernels.node_compiler import CompiledFunction, Uncompilable, compile_function, first_line

Array = npt.NDArray[Any]
compiled = numba.njit(nogil=True)


@dataclass(frozen=True)
class UpLoop:
    """Runs `upward`."""

    states: Callable[..., None]
    """`(x, offsets, indices, parameters, state, first, last)`: computes the states of nodes `[first, last)`.
    """


@dataclass(frozen=True)
class DownLoops:
    """Run `downward`."""

    errors: Callable[..., None]
    """`(x, offsets, indices, parameters, state, delta, out, low, high)`: adds to the errors of senders `[low,
    high)`.
    """
    gradients: Callable[..., None] | None
    """`(x, offsets, indices, parameters, state, delta, gradients, first, last)`: adds those of nodes `[first,
    last)`.
    """


@lru_cache(maxsize=128)
def up_loop(upward: Callable[..., Any], kinds: str, dtype: np.dtype[Any]) -> UpLoop:
    """Compiles `upward` and the loop around it.

    Args:
        upward: the user's function.
        kinds: a letter for each parameter, "e" for one number for each edge or "n" for one.
        dtype: of states, errors and parameters.

    Raises:
        Uncompilable: Numba refuses the function, or it does not return a number.
    """
    function = _compiled_for(upward, kinds, dtype)
    if not isinstance(function.returns, types.Number | types.Boolean):
        raise Uncompilable(
            *first_line(upward), f"It returns {function.returns}; it must return one number, the state."
        )
    loop = UpLoop(_states_loop(_caller(function, kinds)))
    x, table, flats, _ = _nothing(len(kinds), dtype)
    loop.states(x, table, table, flats, x, 0, 0)
    return loop


@lru_cache(maxsize=128)
def down_loops(downward: Callable[..., Any], kinds: str, dtype: np.dtype[Any]) -> DownLoops:
    """Compiles `downward` and the loops around it; as `up_loop`.

    Raises:
        Uncompilable: Numba refuses the function, or it does not return what it must.
    """
    function = _compiled_for(downward, kinds, dtype, more=2)
    _check_downward(downward, function, kinds)
    call = _caller(function, kinds, "state", "error")
    x, table, flats, sums = _nothing(len(kinds), dtype)
    errors = _errors_loop(call)
    errors(x, table, table, flats, x, x, x, 0, 0)
    if not kinds:
        return DownLoops(errors, None)
    gradients = _gradients_loop(call, _adder(kinds))
    gradients(x, table, table, flats, x, x, sums, 0, 0)
    return DownLoops(errors, gradients)


def frozen(array: Array) -> Array:
    """A view that nobody can write to: how parameters are handed to a user's function."""
    view = array.view()
    view.flags.writeable = False
    return view


def _compiled_for(
    function: Callable[..., Any], kinds: str, dtype: np.dtype[Any], *, more: int = 0
) -> CompiledFunction:
    """Compiles for parameters that cannot be written to: they are the network's own."""
    numbers = [numba.from_dtype(dtype)] * more
    try:
        return compile_function(function, (*_argument_types(kinds, dtype, readonly=True), *numbers))
    except Uncompilable as refused:
        try:
            compile_function(function, (*_argument_types(kinds, dtype, readonly=False), *numbers))
        except Uncompilable:
            raise refused from refused.__cause__
        reason = "It changes a parameter in place, which is the network's own; change a copy of it."
        raise Uncompilable(*first_line(function), reason) from refused


def _argument_types(kinds: str, dtype: np.dtype[Any], *, readonly: bool) -> tuple[Any, ...]:
    number = numba.from_dtype(dtype)
    numbers = types.Array(number, 1, "C", readonly=readonly)
    return (types.Array(number, 1, "C"), *(numbers if kind == "e" else number for kind in kinds))


def _nothing(n_parameters: int, dtype: np.dtype[Any]) -> tuple[Any, Any, Any, Any]:
    """Arguments without a node, of the types that real ones have; the last two are parameters and gradients.

    Numba cannot type an empty tuple: one is spare.
    """
    empty, n = np.empty(0, dtype), max(n_parameters, 1)
    return np.empty((0, 0), dtype), np.zeros(1, np.int64), (frozen(empty),) * n, (empty,) * n


def _check_downward(downward: Callable[..., Any], function: CompiledFunction, kinds: str) -> None:
    wanted = ["errors (an array)", *("an array" if kind == "e" else "a number" for kind in kinds)]
    returns: Any = function.returns
    is_tuple = isinstance(returns, types.BaseTuple)
    given = tuple(returns) if is_tuple else (returns,)
    fits = is_tuple and len(given) == len(wanted)
    for what, kind in zip(given, "e" + kinds, strict=False):
        is_right = (
            isinstance(what, types.Array) and what.ndim == 1
            if kind == "e"
            else isinstance(what, types.Number)
        )
        fits = fits and is_right
    if not fits:
        raise Uncompilable(
            *first_line(downward),
            f"It returns {'the tuple ' if is_tuple else ''}({', '.join(map(str, given))}); it must return "
            f"the tuple ({', '.join(wanted)}{',' if len(wanted) == 1 else ''}): an error for each sender, "
            "then a gradient for each parameter.",
        )


def _caller(function: CompiledFunction, kinds: str, *more: str) -> Callable[..., Any]:
    """`call(incoming, parameters, start, stop, node, ...)`, which hands each parameter over in its kind."""
    picked = [f"parameters[{i}][{'start:stop' if kind == 'e' else 'node'}]" for i, kind in enumerate(kinds)]
    takes = ", ".join(["incoming", "parameters", "start", "stop", "node", *more])
    gives = ", ".join(["incoming", *picked, *more])
    return _generated(f"def call({takes}):\n    return function({gives})\n", "call", function=function.call)


def _adder(kinds: str) -> Callable[..., Any]:
    """`add(result, gradients, start, n_edges, node)`, which adds the gradients of one node and example."""
    lines = ["def add(result, gradients, start, n_edges, node):"]
    for i, kind in enumerate(kinds):
        if kind == "n":
            lines.append(f"    gradients[{i}][node] += result[{i + 1}]")
            continue
        lines += [
            f"    if len(result[{i + 1}]) != n_edges:",
            "        raise ValueError('downward must return gradients of edges as long as incoming')",
            "    for k in range(n_edges):",
            f"        gradients[{i}][start + k] += result[{i + 1}][k]",
        ]
    return _generated("\n".join(lines) + "\n", "add")


def _generated(text: str, name: str, **names: Any) -> Callable[..., Any]:
    exec(compile(text, f"<generated {name}>", "exec"), names)
    function: Callable[..., Any] = compiled(names[name])
    return function


@compiled
def _gather(x: Any, indices: Any, start: int, stop: int, tile: Any) -> None:
    for k in range(start, stop):
        sender = indices[k]
        for e in range(tile.shape[0]):
            tile[e, k - start] = x[sender, e] if sender >= 0 else 0


@compiled
def _tile(x: Any, offsets: Any) -> Any:
    """Room for what any one node hears."""
    widest = 0
    for n in range(len(offsets) - 1):
        widest = max(widest, offsets[n + 1] - offsets[n])
    return np.empty((x.shape[1], widest), x.dtype)


@compiled
def _listens(indices: Any, start: int, stop: int, low: int, high: int) -> bool:
    for k in range(start, stop):  # noqa: SIM110 - Numba does not compile any()
        if indices[k] >= 0 and low <= indices[k] < high:
            return True
    return False


def _states_loop(call: Callable[..., Any]) -> Callable[..., None]:
    @compiled
    def states(
        x: Any, offsets: Any, indices: Any, parameters: Any, state: Any, first: int, last: int
    ) -> None:
        tile = _tile(x, offsets)
        for n in range(first, last):
            start, stop = offsets[n], offsets[n + 1]
            _gather(x, indices, start, stop, tile)
            for e in range(state.shape[1]):
                state[n, e] = call(tile[e, : stop - start], parameters, start, stop, n)

    loop: Callable[..., None] = states
    return loop


def _errors_loop(call: Callable[..., Any]) -> Callable[..., None]:
    @compiled
    def errors(
        x: Any,
        offsets: Any,
        indices: Any,
        parameters: Any,
        state: Any,
        delta: Any,
        out: Any,
        low: Any,
        high: Any,
    ) -> None:
        tile = _tile(x, offsets)
        for n in range(state.shape[0]):
            start, stop = offsets[n], offsets[n + 1]
            if not _listens(indices, start, stop, low, high):
                continue
            _gather(x, indices, start, stop, tile)
            for e in range(state.shape[1]):
                result = call(tile[e, : stop - start], parameters, start, stop, n, state[n, e], delta[n, e])
                if len(result[0]) != stop - start:
                    raise ValueError("downward must return errors as long as incoming")
                for k in range(start, stop):
                    if indices[k] >= 0 and low <= indices[k] < high:
                        out[indices[k] - low, e] += result[0][k - start]

    loop: Callable[..., None] = errors
    return loop


def _gradients_loop(call: Callable[..., Any], add: Callable[..., Any]) -> Callable[..., None]:
    @compiled
    def gradients(
        x: Any,
        offsets: Any,
        indices: Any,
        parameters: Any,
        state: Any,
        delta: Any,
        sums: Any,
        first: int,
        last: int,
    ) -> None:
        tile = _tile(x, offsets)
        for n in range(first, last):
            start, stop = offsets[n], offsets[n + 1]
            _gather(x, indices, start, stop, tile)
            for e in range(state.shape[1]):
                result = call(tile[e, : stop - start], parameters, start, stop, n, state[n, e], delta[n, e])
                add(result, sums, start, stop - start, n)

    loop: Callable[..., None] = gradients
    return loop
