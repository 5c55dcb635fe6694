"""Activation functions over whole arrays, shared by dense, local and element-wise kernels.

Arrays are stored as float32, float64 or bfloat16's bits; the arithmetic of the last is float32, rounded once.
The bits of an element never depend on where in the array it lies, because cuts move elements: loops
consist of single IEEE operations and fused multiply-adds.

A loop that works in place takes its array once. Given as two arguments, an array would overlap itself, and
the loop would run without vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from numba.extending import register_jitable

from partita.engine.kernels.calls import split_rows
from partita.engine.kernels.kernel import Array, Call, Kernel, no_op
from partita.engine.kernels.views import flat
from partita.engine.numerics import compiled, downcast, fma, upcast
from partita.engine.numerics.functions import hyperbolic_tangent, logistic

Function = Callable[[Any], Any]


@dataclass(frozen=True)
class Loops:
    """The compiled loops of one activation function. Arrays of a call have one shape, C-contiguous."""

    activate: Callable[[Array], None]
    """`(sums)`, flat: replaces sums by activations."""
    finish: Callable[[Array, Array], None]
    """`(sums, bias)`, `[node, example]` and `[node]`: adds the bias, and replaces sums by activations."""
    finish_into: Callable[[Array, Array, Array], None]
    """`(sums, bias, output)`: as `finish`, from sums of another type into the output."""
    multiply: Callable[[Array, Array], None]
    """`(output, grad)`, flat: `grad *= slope(output)`."""
    write: Callable[[Array, Array, Array, bool], None]
    """`(output, grad, out, accumulate)`, flat: `out = grad * slope(output)`, or adds it."""


def activate(function: str, sums: Array) -> None:
    """Replaces sums of any shape, C-contiguous, by activations, in place."""
    if function != "linear":
        LOOPS[function].activate(sums.reshape(-1))


def add_gradient(function: str, output: Array, grad: Array, out: Array, *, accumulate: bool) -> None:
    """Writes `grad * slope(output)` into `out`, or adds it. All of one shape."""
    LOOPS[function].write(output.reshape(-1), grad.reshape(-1), out.reshape(-1), accumulate)


def multiply_by_slope(function: str, kernel: Kernel) -> Call:
    """Prepares `Kernel.backward_activation`: multiplies the gradient by the slope, in place."""
    if function == "linear":
        return no_op
    output, grad = flat(kernel.arrays.output), flat(kernel.arrays.own_grad)
    return split_rows(kernel.pool, LOOPS[function].multiply, output, grad)


@register_jitable
def _linear(total: Any) -> Any:
    return total


@register_jitable
def _linear_slope(output: Any) -> Any:
    return type(output)(1)


@register_jitable
def _relu(total: Any) -> Any:
    return type(total)(0) if total <= 0 else total  # a NaN stays one


@register_jitable
def _relu_slope(output: Any) -> Any:
    return type(output)(1) if output > 0 else type(output)(0)


@register_jitable
def _sigmoid_slope(output: Any) -> Any:
    return output * (type(output)(1) - output)


@register_jitable
def _tanh_slope(output: Any) -> Any:
    return fma(-output, output, type(output)(1))


def _loops(value: Function, slope: Function) -> Loops:
    @compiled
    def activate(sums: Array) -> None:
        for i in range(len(sums)):
            sums[i] = downcast(value(upcast(sums[i])), sums[i])

    @compiled
    def finish(sums: Array, bias: Array) -> None:
        for node in range(sums.shape[0]):
            values, constant = sums[node], upcast(bias[node])
            for e in range(sums.shape[1]):
                values[e] = downcast(value(upcast(values[e]) + constant), values[e])

    @compiled
    def finish_into(sums: Array, bias: Array, output: Array) -> None:
        for node in range(sums.shape[0]):
            values, constant = output[node], upcast(bias[node])
            for e in range(sums.shape[1]):
                values[e] = downcast(value(sums[node, e] + constant), values[e])

    @compiled
    def multiply(output: Array, grad: Array) -> None:
        for i in range(len(output)):
            grad[i] = downcast(upcast(grad[i]) * slope(upcast(output[i])), grad[i])

    @compiled
    def write(output: Array, grad: Array, out: Array, accumulate: bool) -> None:
        for i in range(len(output)):
            found = upcast(grad[i]) * slope(upcast(output[i]))
            out[i] = downcast(upcast(out[i]) + found if accumulate else found, out[i])

    return Loops(activate, finish, finish_into, multiply, write)


LOOPS: Final[dict[str, Loops]] = {
    "linear": _loops(_linear, _linear_slope),
    "relu": _loops(_relu, _relu_slope),
    "sigmoid": _loops(logistic, _sigmoid_slope),
    "tanh": _loops(hyperbolic_tangent, _tanh_slope),
}
"""By the name of the function."""
