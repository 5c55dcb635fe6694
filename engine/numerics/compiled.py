"""The decorators of compiled code, and the fused multiply-add.

Code compiled here may not reassociate sums or fuse operations by itself, so the bits of a result do not
depend on whether LLVM placed it in a vector or in the scalar tail of a loop. Where two roundings can be one,
the code calls `fma`. Sums whose order is free (gradients, over the examples) use `compiled_reassociating`.

A literal number or bool as an argument of a compiled function, or a variable that begins as one, makes Numba
compile the called function once more, for the literal. Where that is large, the code passes `ZERO` or `NO`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np
from numba.extending import intrinsic

from partita.engine.numerics.compiling import CompiledFunction

F = TypeVar("F", bound=Callable[..., Any])


_OPTIONS: Final = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


def compiled(function: F) -> F:
    """Compiles a loop at its first call for each combination of types; kept on disk; runs without the GIL.

    A division by zero gives infinity or NaN, as in NumPy, and indices are not checked.
    """
    return cast(F, CompiledFunction(function, targetoptions=_OPTIONS))


def compiled_reassociating(function: F) -> F:
    """Compiles as `compiled`, for sums that may be taken in the order that suits vectors.

    The order is still the same at every call.
    """
    return cast(
        F, CompiledFunction(function, targetoptions={**_OPTIONS, "fastmath": {"reassoc", "contract", "nsz"}})
    )


def compiled_to_be_called(function: F) -> F:
    """Compiles as `compiled`, for large functions whose compiled callers call them, and have no copy of the
    code.

    An exception that it raises is lost where compiled code has called it.
    """
    return cast(F, CompiledFunction(function, targetoptions=_OPTIONS, called=True))


def compiled_for_pointers(function: F) -> F:
    """Compiles as `compiled_to_be_called`, where arguments are pointers: Python cannot call it."""
    options = {**_OPTIONS, "no_cpython_wrapper": True}
    return cast(F, CompiledFunction(function, targetoptions=options, called=True))


def _generate_fma(typing_context, a, b, c):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.fma(*arguments)

    return (c(a, b, c), generate) if a == b == c else None


fma = cast(Callable[[Any, Any, Any], Any], intrinsic(_generate_fma))
"""`fma(a, b, c)` is `a * b + c` rounded once; all of one floating-point type. For compiled code only."""

ZERO, NO = cast(int, np.int64(0)), cast(bool, np.bool_(False))
"""0 and False that are no literals, for compiled code."""
