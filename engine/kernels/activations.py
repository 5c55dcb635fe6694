"""Activation functions over whole arrays, in place: what dense, local and element-wise kernels share.

The bits of an element never depend on where in the array it lies, because cuts move elements: NumPy's
functions use the same arithmetic for whole vectors and for tails (a test looks at every offset), and the
compiled loops consist of single IEEE operations.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.kernels.scalar import compiled


def activate(function: str, sums: Array) -> None:
    """Replaces sums by states, in place. Any shape, float32 or float64, C-contiguous."""
    _VALUES[function](sums)


def multiply_by_slope(function: str, state: Array, error: Array) -> None:
    """Turns errors of states into errors of sums, in place: `error *= slope(state)`. Both of one shape."""
    if function != "linear":
        _SLOPES[function](state.reshape(-1), error.reshape(-1))


def add_error(function: str, state: Array, error: Array, out: Array, *, accumulate: bool) -> None:
    """Writes `error * slope(state)` into `out`, or adds it to what is there. All of one shape."""
    if not accumulate:
        np.copyto(out, error)
        multiply_by_slope(function, state, out)
    elif function == "linear":
        np.add(out, error, out=out)
    else:
        _ADDERS[function](state.reshape(-1), error.reshape(-1), out.reshape(-1))


def warm(function: str, dtype: np.dtype[np.floating]) -> None:
    """Compiles what this function needs for this dtype."""
    nothing = np.empty(0, dtype)
    activate(function, nothing)
    multiply_by_slope(function, nothing, nothing)
    add_error(function, nothing, nothing, nothing, accumulate=True)


def _linear(sums: Array) -> None:
    pass


def _relu(sums: Array) -> None:
    _clip_below_zero(sums.reshape(-1))


def _sigmoid(sums: Array) -> None:
    with np.errstate(over="ignore"):  # far below zero, exp gives infinity and the state is 0, as it should be
        np.negative(sums, out=sums)
        np.exp(sums, out=sums)
    np.add(sums, 1, out=sums)
    np.reciprocal(sums, out=sums)


def _tanh(sums: Array) -> None:
    np.tanh(sums, out=sums)


@compiled
def _clip_below_zero(sums: Array) -> None:
    # Not np.maximum: of 0.0 and -0.0 it may return the one in a vector and the other in a tail.
    zero = sums.dtype.type(0)
    for i in range(len(sums)):
        value = sums[i]
        sums[i] = zero if value <= zero else value  # a NaN stays one


@compiled
def _relu_slope(state: Array, error: Array) -> None:
    one = state.dtype.type(1)
    for i in range(len(state)):
        error[i] *= one if state[i] > 0 else one - one


@compiled
def _sigmoid_slope(state: Array, error: Array) -> None:
    one = state.dtype.type(1)
    for i in range(len(state)):
        error[i] *= state[i] * (one - state[i])


@compiled
def _tanh_slope(state: Array, error: Array) -> None:
    one = state.dtype.type(1)
    for i in range(len(state)):
        error[i] *= one - state[i] * state[i]


@compiled
def _add_relu_error(state: Array, error: Array, out: Array) -> None:
    one = state.dtype.type(1)
    for i in range(len(state)):
        out[i] += error[i] * (one if state[i] > 0 else one - one)


@compiled
def _add_sigmoid_error(state: Array, error: Array, out: Array) -> None:
    one = state.dtype.type(1)
    for i in range(len(state)):
        out[i] += error[i] * (state[i] * (one - state[i]))


@compiled
def _add_tanh_error(state: Array, error: Array, out: Array) -> None:
    one = state.dtype.type(1)
    for i in range(len(state)):
        out[i] += error[i] * (one - state[i] * state[i])


_VALUES: dict[str, Callable[[Array], None]] = {
    "linear": _linear,
    "relu": _relu,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
}
_SLOPES: dict[str, Callable[[Array, Array], None]] = {
    "relu": _relu_slope,
    "sigmoid": _sigmoid_slope,
    "tanh": _tanh_slope,
}
_ADDERS: dict[str, Callable[[Array, Array, Array], None]] = {
    "relu": _add_relu_error,
    "sigmoid": _add_sigmoid_error,
    "tanh": _add_tanh_error,
}
