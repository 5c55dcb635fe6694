"""The exponential, the logistic function and the hyperbolic tangent of one number, for compiled loops.

They consist of single IEEE operations and fused multiply-adds, without branches: LLVM turns a loop of them
into vectors, and a number has the same bits wherever in the array it lies. A NaN stays one.

With n the integer nearest to x / ln 2, e^x is 2^n e^r, where r = x - n ln 2 lies within half a ln 2 of zero;
there Taylor's series of e^r - 1 needs 7 terms in float32 and 13 in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload, register_jitable

from partita.engine.numerics.compiled import fma

Scalar = np.floating[Any]
Function = Callable[[Any], Any]

_LN2_REST: Final = 2.3190468138462996e-17
"""The difference between ln 2 and its float64."""


@dataclass(frozen=True)
class _Constants:
    """The constants for a type.

    Args:
        lowest: a number whose exponential is rounded to 0.
        highest: a number whose exponential is infinite.
        terms: of the series.
    """

    kind: type[Scalar]
    lowest: float
    highest: float
    terms: int

    @property
    def log2_e(self) -> Scalar:
        return self.kind(1 / math.log(2))

    @property
    def shifter(self) -> Scalar:
        """A number that rounds what is added to it to an integer, in the low bits of the sum."""
        return self.kind(1.5 * 2 ** np.finfo(self.kind).nmant)

    @property
    def ln2(self) -> tuple[Scalar, Scalar]:
        """Ln 2 in two parts: rounded, and the rest."""
        high = self.kind(math.log(2))
        return high, self.kind(math.log(2) - float(high) + _LN2_REST)

    @property
    def series(self) -> tuple[Scalar, ...]:
        """1/k! for k from the last term down to 2."""
        return tuple(self.kind(1 / math.factorial(k)) for k in range(self.terms, 1, -1))


_SINGLE: Final = _Constants(np.float32, lowest=-104, highest=89, terms=7)
_DOUBLE: Final = _Constants(np.float64, lowest=-746, highest=710, terms=13)


def _generate_power(typing_context, factor, shifted):  # type: ignore[no-untyped-def]
    if factor != shifted or factor not in (types.float32, types.float64):
        return None
    kind, width, n_mantissa = (np.float32, 32, 23) if factor == types.float32 else (np.float64, 64, 52)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        integer, floating = ir.IntType(width), arguments[0].type
        shifter = builder.bitcast(ir.Constant(floating, 1.5 * 2**n_mantissa), integer)
        exponent = builder.sub(builder.bitcast(arguments[1], integer), shifter)
        half = builder.ashr(exponent, ir.Constant(integer, 1))
        product, bias = arguments[0], ir.Constant(integer, np.finfo(kind).maxexp - 1)
        for part in (half, builder.sub(exponent, half)):
            bits = builder.shl(builder.add(part, bias), ir.Constant(integer, n_mantissa))
            product = builder.fmul(product, builder.bitcast(bits, floating))
        return product

    return factor(factor, shifted), generate


_times_power_of_two = cast(Callable[[Any, Any], Any], intrinsic(_generate_power))
"""`factor * 2**n`, given n plus the shifter; in two steps, as 2**n itself may be too large or too small."""


def _reduced_for(constants: _Constants) -> Callable[[Any], tuple[Any, Any]]:
    """Makes the function that returns `e^r - 1`, and n plus the shifter."""
    log2_e, shifter, (high, low), series = (
        constants.log2_e,
        constants.shifter,
        constants.ln2,
        constants.series,
    )

    @register_jitable
    def reduced(x: Any) -> tuple[Any, Any]:
        shifted = fma(x, log2_e, shifter)
        n = shifted - shifter
        r = fma(-n, low, fma(-n, high, x))
        total = series[0]
        for coefficient in series[1:]:
            total = fma(total, r, coefficient)
        return fma(total, r * r, r), shifted

    return cast(Callable[[Any], tuple[Any, Any]], reduced)


def _exponential_for(constants: _Constants) -> Function:
    reduced, one = _reduced_for(constants), constants.kind(1)
    lowest, highest = constants.kind(constants.lowest), constants.kind(constants.highest)

    def exponential(x: Any) -> Any:
        x = lowest if x < lowest else x
        x = highest if x > highest else x
        less_one, shifted = reduced(x)
        return _times_power_of_two(less_one + one, shifted)

    return exponential


def _hyperbolic_tangent_for(constants: _Constants) -> Function:
    reduced, one, two = _reduced_for(constants), constants.kind(1), constants.kind(2)
    end = constants.kind(20 if constants.kind is np.float32 else 40)

    def hyperbolic_tangent(x: Any) -> Any:
        x = x + x
        x = -end if x < -end else x
        x = end if x > end else x
        less_one, shifted = reduced(x)
        power = _times_power_of_two(one, shifted)
        less_one = fma(less_one, power, power - one)
        return less_one / (less_one + two)

    return hyperbolic_tangent


def _by_type(make: Callable[[_Constants], Function]) -> Callable[[Any], Function | None]:
    """Chooses the implementation for the type of an argument, as Numba asks for it."""
    single, double = make(_SINGLE), make(_DOUBLE)

    def choose(x: Any) -> Function | None:
        return {types.float32: single, types.float64: double}.get(x)

    return choose


def exponential(x: Any) -> Any:
    """Computes `e**x`, in the type of `x`, float32 or float64; 0 far below zero, infinite far above. For
    compiled code.
    """
    raise NotImplementedError("only compiled code can call this; use np.exp")


def hyperbolic_tangent(x: Any) -> Any:
    """Computes `tanh(x)`, in the type of `x`, float32 or float64. For compiled code."""
    raise NotImplementedError("only compiled code can call this; use np.tanh")


@register_jitable
def logistic(x: Any) -> Any:
    """Computes `1 / (1 + e**-x)`, in the type of `x`, float32 or float64. For compiled code."""
    odds = exponential(-abs(x))
    one = type(x)(1)
    return (odds if x < 0 else one) / (odds + one)


def _implement(function: Function, make: Callable[[_Constants], Function]) -> None:
    """Gives a function its implementations, which are part of its fingerprint, too."""
    choose = _by_type(make)
    overload(function)(choose)
    vars(function)["implementations"] = choose


_implement(exponential, _exponential_for)
_implement(hyperbolic_tangent, _hyperbolic_tangent_for)
