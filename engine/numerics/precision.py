"""Precisions by name, bfloat16 and float16.

NumPy has no bfloat16, so its numbers are kept as `uint16`: the upper half of a float32's bits (sign, 8 bits
of exponent, 7 of fraction). float16 is NumPy's own: 5 bits of exponent, 10 of fraction; larger numbers than
65,504 become infinite. Sums of either, and the masters of parameters, are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from partita.engine.numerics.compiled import compiled

Array = npt.NDArray[Any]

_STORAGE: Final = {"float32": np.float32, "float64": np.float64, "bfloat16": np.uint16, "float16": np.float16}
_MASTER: Final = {"float32": np.float32, "float64": np.float64, "bfloat16": np.float32, "float16": np.float32}


def storage(precision: str) -> np.dtype[Any]:
    """The storage type of activations, gradients and messages of a precision."""
    return np.dtype(_STORAGE[precision])


def master(precision: str) -> np.dtype[Any]:
    """The type of parameters, of their gradients, and of sums."""
    return np.dtype(_MASTER[precision])


def _generate_upcast(typing_context, value):  # type: ignore[no-untyped-def]
    if isinstance(value, types.Float):
        return value(value), lambda context, builder, signature, arguments: arguments[0]
    if value != types.uint16:
        return None

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        wide = builder.zext(arguments[0], ir.IntType(32))
        return builder.bitcast(builder.shl(wide, ir.Constant(ir.IntType(32), 16)), ir.FloatType())

    return types.float32(value), generate


def _generate_downcast(typing_context, value, like):  # type: ignore[no-untyped-def]
    if not isinstance(value, types.Float):
        return None
    if isinstance(like, types.Float):

        def cast_to(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            return context.cast(builder, arguments[0], value, like)

        return like(value, like), cast_to
    if like != types.uint16:
        return None
    i32 = ir.IntType(32)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        single = context.cast(builder, arguments[0], value, types.float32)
        bits = builder.bitcast(single, i32)
        odd = builder.and_(builder.lshr(bits, ir.Constant(i32, 16)), ir.Constant(i32, 1))
        rounded = builder.add(bits, builder.add(odd, ir.Constant(i32, 0x7FFF)))  # ties to even
        quiet = builder.or_(bits, ir.Constant(i32, 0x400000))
        kept = builder.select(builder.fcmp_unordered("uno", single, single), quiet, rounded)
        return builder.trunc(builder.lshr(kept, ir.Constant(i32, 16)), ir.IntType(16))

    return types.uint16(value, like), generate


upcast = cast(Callable[[Any], Any], intrinsic(_generate_upcast))
"""`upcast(x)` of a stored number is the number: float32 for bfloat16's bits, else itself. For compiled code.
"""

downcast = cast(Callable[[Any, Any], Any], intrinsic(_generate_downcast))
"""`downcast(value, like)` is the value in the storage type of `like`: for bfloat16 rounded to the nearest,
ties to even; a NaN stays one. For compiled code."""


@compiled
def _upcast(source: Array, out: Array) -> None:
    for i in range(len(out)):
        out[i] = upcast(source[i])


@compiled
def _downcast(source: Array, out: Array) -> None:
    for i in range(len(out)):
        out[i] = downcast(source[i], out[i])


def upcast_array(source: Array, out: Array | None = None) -> Array:
    """Converts stored numbers: to float32 `[*shape]` from float16 or bfloat16's bits, else to their own type.

    Args:
        source: in storage type, C-contiguous.
        out: receives them, C-contiguous; a new array if not given.
    """
    if out is None:
        out = np.empty(source.shape, np.float32 if source.dtype.itemsize == 2 else source.dtype)
    if source.dtype != np.uint16 or out.dtype == np.uint16:
        np.copyto(out, source)
    else:
        _upcast(source.reshape(-1), out.reshape(-1))
    return out


def downcast_array(source: Array, out: Array) -> Array:
    """Converts numbers to the storage type of `out`: rounded to nearest, ties to even, for float16, in which
    they may become infinite, and bfloat16's `uint16`.

    Args:
        source: float32 or float64, C-contiguous.
        out: of its shape, C-contiguous.
    """
    if source.dtype == out.dtype or out.dtype != np.uint16:
        with np.errstate(over="ignore"):
            np.copyto(out, source)
    else:
        _downcast(source.reshape(-1), out.reshape(-1))
    return out
