"""Whether numbers are finite, asked in the pass that reads them anyway.

`marked` adds no arithmetic that the loop around it would have to wait for, and keeps its flag in 32 bits: the
64 that Numba gives every integer would halve the numbers in a vector register.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from partita.engine.numerics import compiled, widen
from partita.engine.parameters.vector import Vector


def _generate_marked(typing_context, mark, number):  # type: ignore[no-untyped-def]
    if mark != types.int32 or not isinstance(number, types.Float):
        return None

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        kept, value = arguments
        nothing = builder.fsub(value, value)  # 0, or NaN where the value is not finite
        bad = builder.fcmp_unordered("uno", nothing, nothing)
        return builder.or_(kept, builder.zext(bad, ir.IntType(32)))

    return types.int32(mark, number), generate


marked = cast(Callable[[Any, Any], Any], intrinsic(_generate_marked))
"""`marked(mark, number)` is 1 where the number is not finite, else the mark, an int32 that starts at 0. For
compiled code."""


@compiled
def all_finite(vector: Vector) -> bool:
    """Whether no number of a vector (float32, float64, or the bits of bfloat16) is NaN or infinite."""
    mark = np.int32(0)
    for i in range(vector.size):
        mark = marked(mark, widen(vector[i]))
    return bool(mark == 0)
