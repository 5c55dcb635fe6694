"""Activation functions over whole arrays: what dense, local and element-wise kernels share.

Arrays hold numbers as they are stored, float32, float64 or bfloat16's bits; the arithmetic of the last is
float32, rounded once. The bits of an element never depend on where in the array it lies, because cuts move
elements: loops consist of single IEEE operations and fused multiply-adds.

A loop that works in place takes its array once. Given as two arguments, an array would overlap itself, and
the loop would run without vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, Final

import numpy as np
from numba.extending import register_jitable

from partita.engine.kernels.calls import bound
from partita.engine.kernels.kernel import Array
from partita.engine.numerics import compiled, downcast, fma, upcast
from partita.engine.numerics.functions import hyperbolic_tangent, logistic

Function = Callable[[Any], Any]


@dataclass(frozen=True)
class Loops:
    """Of one activation function, compiled. Arrays of one call are of one shape, C-contiguous."""

    activate: Callable[[Array], None]
    """`(sums)`, flat: replaces sums by states."""
    finish: Callable[[Array, Array], None]
    """`(sums, bias)`, `[node, example]` and `[node]`: adds the bias, and replaces sums by states."""
    finish_into: Callable[[Array, Array, Array], None]
    """`(sums, bias, state)`: as `finish`, from sums of another type into the states."""
    multiply: Callable[[Array, Array], None]
    """`(state, error)`, flat: `error *= slope(state)`."""
    write: Callable[[Array, Array, Array], None]
    """`(state, error, out)`, flat: `out = error * slope(state)`."""
    add: Callable[[Array, Array, Array], None]
    """`(state, error, out)`, flat: `out += error * slope(state)`."""


def activate(function: str, sums: Array) -> None:
    """Replaces sums by states, in place. Any shape, C-contiguous."""
    if function != "linear":
        LOOPS[function].activate(sums.reshape(-1))


def multiply_by_slope(function: str, state: Array, error: Array) -> None:
    """Turns errors of states into errors of sums, in place: `error *= slope(state)`. Both of one shape."""
    if function != "linear":
        LOOPS[function].multiply(state.reshape(-1), error.reshape(-1))


def add_error(function: str, state: Array, error: Array, out: Array, *, accumulate: bool) -> None:
    """Writes `error * slope(state)` into `out`, or adds it to what is there. All of one shape."""
    loop = LOOPS[function].add if accumulate else LOOPS[function].write
    loop(state.reshape(-1), error.reshape(-1), out.reshape(-1))


def warm(loop: Callable[..., None], dtype: np.dtype[Any]) -> None:
    """Compiles one of the flat loops of `Loops` for numbers that are stored so."""
    bound(loop, *[np.empty(0, dtype)] * len(signature(loop).parameters))


@register_jitable
def _linear(total: Any) -> Any:
    return total


@register_jitable
def _linear_slope(state: Any) -> Any:
    return type(state)(1)


@register_jitable
def _relu(total: Any) -> Any:
    return type(total)(0) if total <= 0 else total  # a NaN stays one


@register_jitable
def _relu_slope(state: Any) -> Any:
    return type(state)(1) if state > 0 else type(state)(0)


@register_jitable
def _sigmoid_slope(state: Any) -> Any:
    return state * (type(state)(1) - state)


@register_jitable
def _tanh_slope(state: Any) -> Any:
    return fma(-state, state, type(state)(1))


def _loops(value: Function, slope: Function) -> Loops:
    """The loops around a value of a sum, and a slope of a state."""

    @compiled
    def activate(sums: Array) -> None:
        for i in range(len(sums)):
            sums[i] = downcast(value(upcast(sums[i])), sums[i])

    @compiled
    def finish(sums: Array, bias: Array) -> None:
        for node in range(sums.shape[0]):
            states, constant = sums[node], upcast(bias[node])
            for e in range(sums.shape[1]):
                states[e] = downcast(value(upcast(states[e]) + constant), states[e])

    @compiled
    def finish_into(sums: Array, bias: Array, state: Array) -> None:
        for node in range(sums.shape[0]):
            states, constant = state[node], upcast(bias[node])
            for e in range(sums.shape[1]):
                states[e] = downcast(value(sums[node, e] + constant), states[e])

    @compiled
    def multiply(state: Array, error: Array) -> None:
        for i in range(len(state)):
            error[i] = downcast(upcast(error[i]) * slope(upcast(state[i])), error[i])

    @compiled
    def write(state: Array, error: Array, out: Array) -> None:
        for i in range(len(state)):
            out[i] = downcast(upcast(error[i]) * slope(upcast(state[i])), out[i])

    @compiled
    def add(state: Array, error: Array, out: Array) -> None:
        for i in range(len(state)):
            out[i] = downcast(upcast(out[i]) + upcast(error[i]) * slope(upcast(state[i])), out[i])

    return Loops(activate, finish, finish_into, multiply, write, add)


LOOPS: Final[dict[str, Loops]] = {
    "linear": _loops(_linear, _linear_slope),
    "relu": _loops(_relu, _relu_slope),
    "sigmoid": _loops(logistic, _sigmoid_slope),
    "tanh": _loops(hyperbolic_tangent, _tanh_slope),
}
"""By the name of the function."""
