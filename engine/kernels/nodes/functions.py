"""Functions of Python, `math` and NumPy that a node's function may call on numbers, and their `ir`.

NumPy's functions apply to whole arrays too, number by number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from partita.engine.kernels.nodes import ir

Make = Callable[..., ir.Expression]


def _call(name: str, kind: Any = "real") -> Make:
    return lambda *arguments: ir.Call(name, arguments, kind)


def larger(a: ir.Expression, b: ir.Expression) -> ir.Expression:
    """Makes `max(a, b)` as in Python: the first, unless the second is larger."""
    return ir.Choice(ir.Operation(">", (b, a)), b, a)


def smaller(a: ir.Expression, b: ir.Expression) -> ir.Expression:
    """Makes `min(a, b)` as in Python."""
    return ir.Choice(ir.Operation("<", (b, a)), b, a)


def _or_nan(choose: Make) -> Make:
    """Makes NumPy's variant: a NaN on either side stays one."""
    return lambda a, b: ir.Choice(ir.Operation("!=", (a, a)), a, choose(b, a))


def _first_of(choose: Make) -> Make:
    def of_several(first: ir.Expression, second: ir.Expression, *others: ir.Expression) -> ir.Expression:
        chosen = choose(first, second)
        return of_several(chosen, *others) if others else chosen

    return of_several


def _power(base: ir.Expression, exponent: ir.Expression) -> ir.Expression:
    return ir.Operation("**", (base, exponent))


def _sign(x: ir.Expression) -> ir.Expression:
    zero, one = ir.Constant(0), ir.Constant(1)
    below = ir.Choice(ir.Operation("<", (x, zero)), ir.Operation("-", (one,)), x)
    return ir.Choice(ir.Operation(">", (x, zero)), one, below)


def _is_nan(x: ir.Expression) -> ir.Expression:
    return ir.Operation("!=", (x, x))


_REAL = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "copysign", "cos", "cosh", "erf", "erfc"),
    *("expm1", "fabs", "fmod", "gamma", "hypot", "lgamma", "log", "log10", "log1p", "log2", "pow"),
    *("sin", "sinh", "sqrt", "tan"),
)
_SAME_IN_NUMPY = {
    **{name: name for name in ("cos", "cosh", "expm1", "fabs", "fmod", "hypot", "log", "log10", "log1p")},
    **{name: name for name in ("log2", "sin", "sinh", "sqrt", "tan", "copysign")},
    "arccos": "acos",
    "arcsin": "asin",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "abs": "fabs",
}

NUMBERS: dict[Any, Make] = {
    abs: _call("abs"),
    float: _call("float"),
    int: _call("int", "int"),
    pow: _power,
    max: _first_of(larger),
    min: _first_of(smaller),
    math.exp: _call("exponential"),
    math.tanh: _call("hyperbolic_tangent"),
    math.isnan: _is_nan,
    **{getattr(math, name): _call(f"math.{name}") for name in _REAL},
    **{getattr(math, name): _call(f"math.{name}", "int") for name in ("ceil", "floor", "trunc")},
}
"""Functions of numbers that nodes may call."""

EVERYWHERE: dict[Any, Make] = {
    np.exp: _call("exponential"),
    np.tanh: _call("hyperbolic_tangent"),
    np.square: lambda x: _power(x, ir.Constant(2)),
    np.power: _power,
    np.maximum: _or_nan(larger),
    np.minimum: _or_nan(smaller),
    np.where: ir.Choice,
    np.sign: _sign,
    np.isnan: _is_nan,
    np.floor: _call("np.floor"),
    np.ceil: _call("np.ceil"),
    **{getattr(np, name): _call(f"math.{ours}") for name, ours in _SAME_IN_NUMPY.items()},
}
"""Functions of numbers, or of arrays number by number."""
