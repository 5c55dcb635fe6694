"""The derivatives of operators and functions of numbers, in `ir`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Final

from partita.engine.kernels.nodes import ir

E = ir.Operand


def _sum(a: E, b: E) -> E:
    return ir.Value("+", (a, b))


def _less(a: E, b: E) -> E:
    return ir.Value("-", (a, b))


def times(a: E, b: E) -> E:
    """Makes a product; of 1, the other factor."""
    return b if a == ir.Constant(1.0) else a if b == ir.Constant(1.0) else ir.Value("*", (a, b))


def over(a: E, b: E) -> E:
    """Makes the quotient of two numbers."""
    return ir.Value("/", (a, b))


def negative(a: E) -> E:
    """Makes the number with the other sign."""
    return ir.Value("-", (a,))


def _call(name: str, x: E) -> E:
    return ir.Value(name, (x,))


def _root(x: E) -> E:
    return _call("math.sqrt", x)


def _square(x: E) -> E:
    return ir.Value("*", (x, x))


def _sided(x: E, a: E) -> E:
    """Makes `a`, with the sign of x."""
    zero = ir.Constant(0.0)
    below = ir.Value("choice", (ir.Value("<", (x, zero)), negative(a), zero))
    return ir.Value("choice", (ir.Value(">", (x, zero)), a, below))


def _power(a: E, y: E, base: E, exponent: E) -> tuple[E, ...]:
    if isinstance(exponent, ir.Constant):
        lower = exponent.value - 1
        slope = ir.Constant(1.0) if lower == 0 else base if lower == 1 else None
        slope = slope or ir.Value("**", (base, ir.Constant(lower)))
        return (times(times(a, ir.Constant(float(exponent.value))), slope),)
    lower_power = ir.Value("**", (base, _less(exponent, ir.Constant(1.0))))
    log = ir.Value(
        "choice", (ir.Value(">", (base, ir.Constant(0.0))), _call("math.log", base), ir.Constant(0.0))
    )
    return times(times(a, exponent), lower_power), times(times(a, y), log)


_ONE, _TWO = ir.Constant(1.0), ir.Constant(2.0)
_BELL: Final = ir.Constant(2 / math.sqrt(math.pi))

SLOPES: Final[dict[str, Callable[..., tuple[E, ...]]]] = {
    "/": lambda a, y, x, z: (over(a, z), negative(over(times(a, y), z))),
    "**": _power,
    "%": lambda a, y, x, z: (a, negative(times(a, ir.Value("//", (x, z))))),
    "//": lambda a, y, *x: (),
    "abs": lambda a, y, x: (_sided(x, a),),
    "float": lambda a, y, x: (a,),
    "int": lambda a, y, x: (),
    "np.floor": lambda a, y, x: (),
    "np.ceil": lambda a, y, x: (),
    "exponential": lambda a, y, x: (times(a, y),),
    "hyperbolic_tangent": lambda a, y, x: (times(a, _less(_ONE, _square(y))),),
    "math.acos": lambda a, y, x: (negative(over(a, _root(_less(_ONE, _square(x))))),),
    "math.acosh": lambda a, y, x: (over(a, _root(_less(_square(x), _ONE))),),
    "math.asin": lambda a, y, x: (over(a, _root(_less(_ONE, _square(x)))),),
    "math.asinh": lambda a, y, x: (over(a, _root(_sum(_square(x), _ONE))),),
    "math.atan": lambda a, y, x: (over(a, _sum(_square(x), _ONE)),),
    "math.atan2": lambda a, y, x, z: (
        over(times(a, z), _sum(_square(x), _square(z))),
        negative(over(times(a, x), _sum(_square(x), _square(z)))),
    ),
    "math.atanh": lambda a, y, x: (over(a, _less(_ONE, _square(x))),),
    "math.copysign": lambda a, y, x, z: (_sided(_sided(x, y), a),),
    "math.cos": lambda a, y, x: (negative(times(a, _call("math.sin", x))),),
    "math.cosh": lambda a, y, x: (times(a, _call("math.sinh", x)),),
    "math.erf": lambda a, y, x: (times(times(a, _BELL), _call("exponential", negative(_square(x)))),),
    "math.erfc": lambda a, y, x: (
        negative(times(times(a, _BELL), _call("exponential", negative(_square(x))))),
    ),
    "math.expm1": lambda a, y, x: (times(a, _sum(y, _ONE)),),
    "math.fabs": lambda a, y, x: (_sided(x, a),),
    "math.fmod": lambda a, y, x, z: (a, negative(times(a, ir.Value("math.trunc", (over(x, z),), "int")))),
    "math.hypot": lambda a, y, x, z: (over(times(a, x), y), over(times(a, z), y)),
    "math.log": lambda a, y, x: (over(a, x),),
    "math.log10": lambda a, y, x: (over(a, times(x, ir.Constant(math.log(10)))),),
    "math.log1p": lambda a, y, x: (over(a, _sum(_ONE, x)),),
    "math.log2": lambda a, y, x: (over(a, times(x, ir.Constant(math.log(2)))),),
    "math.pow": _power,
    "math.sin": lambda a, y, x: (times(a, _call("math.cos", x)),),
    "math.sinh": lambda a, y, x: (times(a, _call("math.cosh", x)),),
    "math.sqrt": lambda a, y, x: (over(a, times(_TWO, y)),),
    "math.tan": lambda a, y, x: (times(a, _sum(_ONE, _square(y))),),
}
"""Gradients of the operands: of `y = f(x, z)` with gradient `a`, by the arguments `(a, y, x, z)`. Operands
behind the last have none."""

ALWAYS_FINITE: Final = frozenset(
    {
        *("abs", "float", "hyperbolic_tangent", "int", "np.ceil", "np.floor"),
        *("math.asinh", "math.atan", "math.copysign", "math.cos", "math.erf", "math.erfc", "math.fabs"),
        "math.sin",
    }
)
"""Functions whose values and slopes are finite for every finite number."""


def chooses(body: ir.Body) -> bool:
    """Returns whether numbers may have no influence, because others are chosen in their place."""
    return any(
        isinstance(one, ir.Branch | ir.While) or (isinstance(one, ir.Value) and one.operator == "choice")
        for one in ir.every(body)
    )


def is_finite(operand: ir.Operand, given: Collection[str]) -> bool:
    """Returns whether a number is finite where the arguments of a function are, but for an overflow.

    Args:
        operand: the number.
        given: names of the arguments.
    """
    for one in ir.behind(operand):
        match one:
            case ir.Constant() | ir.Argument() | ir.Counter() | ir.Value("choice" | "+" | "-" | "*"):
                pass
            case ir.Value("item") if one.array in given:
                pass
            case ir.Value(operator) if operator in ALWAYS_FINITE:
                pass
            case _:
                return False
    return True


def has_finite_slopes(value: ir.Value, given: Collection[str]) -> bool:
    """Returns whether all slopes of a number are finite where its operands are, but for an overflow.

    Args:
        value: a number that a function computes, or a product.
        given: see `is_finite`.
    """
    match value.operator, value.operands:
        case "*", factors:
            return all(is_finite(one, given) for one in factors)
        case "/", (_, ir.Constant(divisor)):
            return divisor != 0
        case "**" | "math.pow", (_, ir.Constant(exponent)):
            return exponent >= 1
    return value.operator in ALWAYS_FINITE or value.operator not in SLOPES


def steep(body: ir.Body, given: Collection[str]) -> frozenset[ir.Operand]:
    """Finds the numbers whose slopes may be infinite, if numbers may have no influence; see `chooses`.

    Args:
        body: of the forward pass.
        given: see `is_finite`.
    """
    if not chooses(body):
        return frozenset()
    values = (one for one in ir.every(body) if isinstance(one, ir.Value))
    return frozenset(one for one in values if not has_finite_slopes(one, given))
