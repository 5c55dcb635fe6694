"""The compiled pass over memory that all optimizers share, sums of squares, and checks for finite numbers.

The loop uses no fast-math. An addition, product, quotient or square root is rounded in the same way inside
and outside of a vector register, so the result does not depend on a number's position; and the loop waits for
memory, not for arithmetic. Numba removes the code for arrays that are None.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from partita.engine.numerics import compiled, compiled_reassociating, downcast, upcast
from partita.engine.parameters.vector import Vector

Stored: TypeAlias = npt.NDArray[Any]
"""float32 or float64, or bfloat16 as its bits (uint16)."""

Arithmetic: TypeAlias = Callable[..., Any]
"""Update of one number: (value, gradient, state, index, settings, type) -> new value; writes
`state[k][index]`.

`settings` are Python's floats; `type` converts them to the type of the values."""


def _generate_nonfinite(typing_context, flag, number):  # type: ignore[no-untyped-def]
    if flag != types.int32 or not isinstance(number, types.Float):
        return None

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        before, value = arguments
        difference = builder.fsub(value, value)  # 0, or NaN where the value is not finite
        bad = builder.fcmp_unordered("uno", difference, difference)
        return builder.or_(before, builder.zext(bad, ir.IntType(32)))

    return types.int32(flag, number), generate


nonfinite = cast(Callable[[Any, Any], Any], intrinsic(_generate_nonfinite))
"""`nonfinite(flag, number)` is 1 where the number is not finite, else the flag. For compiled code.

The flag is an int32 that starts at 0: Numba's 64-bit integers would halve the numbers in a vector
register."""


@compiled
def all_finite(vector: Vector) -> bool:
    """Returns whether a vector (float32, float64, or the bits of bfloat16) has no NaN and no infinity."""
    flag = np.int32(0)
    for i in range(vector.size):
        flag = nonfinite(flag, upcast(vector[i]))
    return bool(flag == 0)


@compiled_reassociating
def sum_of_squares(vector: Vector) -> float:
    """Sums the squares of a vector (float32, float64, or the bits of bfloat16) in float64.

    The same vector has always the same sum, to the bit, on any number of threads; the sum over its parts may
    differ within the rounding of float64.
    """
    total = 0.0
    for i in range(vector.size):
        x = np.float64(upcast(vector[i]))
        total += x * x
    return total


def scaled(gradient: Any, value: Any, factor: Any, settings: Any, real: Any) -> Any:
    """Returns the gradient of one number that is accumulated and passed to the arithmetic."""
    return gradient * factor


def loop_around(arithmetic: Arithmetic, scale: Arithmetic) -> Callable[..., bool]:
    """Returns the plain Python loop, for compiled functions of one number."""

    def update(
        values: Vector,
        gradient: Stored,
        state: tuple[Vector, ...],
        accumulated: Vector | None,
        copy: Stored | None,
        factor: float,
        settings: tuple[float, ...],
    ) -> bool:
        real, flag = values.dtype.type, np.int32(0)
        rounded = real(factor)
        for i in range(values.size):
            g = scale(upcast(gradient[i]), values[i], rounded, settings, real)
            flag = nonfinite(flag, g)
            if accumulated is not None:
                accumulated[i] += g
            w = arithmetic(values[i], g, state, i, settings, real)
            values[i] = w
            if copy is not None:
                copy[i] = downcast(w, copy[i])
        return bool(flag == 0)

    return update


def row_loop_around(arithmetic: Arithmetic, scale: Arithmetic) -> Callable[..., bool]:
    """Returns the plain Python loop over some rows of a table, for compiled functions of one number."""

    def update(
        values: Vector,
        rows: Stored,
        gradient: Stored,
        state: tuple[Vector, ...],
        copy: Stored | None,
        factor: float,
        settings: tuple[float, ...],
    ) -> bool:
        real, flag = values.dtype.type, np.int32(0)
        rounded, width = real(factor), gradient.shape[1]
        for k in range(len(rows)):
            start = rows[k] * width
            own, given = values[start : start + width], gradient[k]
            for unit in range(width):
                g = scale(given[unit], own[unit], rounded, settings, real)
                flag = nonfinite(flag, g)
                w = arithmetic(own[unit], g, state, start + unit, settings, real)
                own[unit] = w
                if copy is not None:
                    copy[start + unit] = downcast(w, copy[start + unit])
        return bool(flag == 0)

    return update


@cache
def row_update_loop(arithmetic: Arithmetic, scale: Arithmetic) -> Callable[..., bool]:
    """Returns the compiled loop over rows, which returns whether all (scaled) gradients were finite."""
    return compiled(row_loop_around(compiled(arithmetic), compiled(scale)))


@cache
def update_loop(arithmetic: Arithmetic, scale: Arithmetic) -> Callable[..., bool]:
    """Returns the compiled loop, which returns whether all (scaled) gradients were finite."""
    return compiled(loop_around(compiled(arithmetic), compiled(scale)))
