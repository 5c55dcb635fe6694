"""Functions of Python, `math` and NumPy that a node's function may call on numbers, and their `ir`.

NumPy's functions apply to whole arrays too, number by number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from partita.engine.kernels.nodes import ir

Emit: TypeAlias = Callable[..., ir.Operand]
"""Computes `emit(operator, *operands, kind=...)`."""
Make: TypeAlias = Callable[..., ir.Operand]
"""Computes a function's value, given `emit` and the operands."""


def _call(name: str, kind: ir.Kind = "real") -> Make:
    return lambda emit, *operands: emit(name, *operands, kind=kind)


def larger(emit: Emit, a: ir.Operand, b: ir.Operand) -> ir.Operand:
    """Computes `max(a, b)` as Python does: the first, unless the second is larger."""
    return emit("choice", emit(">", b, a), b, a)


def smaller(emit: Emit, a: ir.Operand, b: ir.Operand) -> ir.Operand:
    """Computes `min(a, b)` as Python does."""
    return emit("choice", emit("<", b, a), b, a)


def _or_nan(choose: Make) -> Make:
    """Makes NumPy's variant: a NaN on either side stays one."""
    return lambda emit, a, b: emit("choice", emit("!=", a, a), a, choose(emit, b, a))


def _first_of(choose: Make) -> Make:
    def of_several(emit: Emit, first: ir.Operand, second: ir.Operand, *others: ir.Operand) -> ir.Operand:
        chosen = choose(emit, first, second)
        return of_several(emit, chosen, *others) if others else chosen

    return of_several


def _power(emit: Emit, base: ir.Operand, exponent: ir.Operand) -> ir.Operand:
    return emit("**", base, exponent)


def _sign(emit: Emit, x: ir.Operand) -> ir.Operand:
    zero = ir.Constant(0)
    below = emit("choice", emit("<", x, zero), ir.Constant(-1), x)
    return emit("choice", emit(">", x, zero), ir.Constant(1), below)


def _is_nan(emit: Emit, x: ir.Operand) -> ir.Operand:
    return emit("!=", x, x)


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
    np.square: lambda emit, x: emit("**", x, ir.Constant(2)),
    np.power: _power,
    np.maximum: _or_nan(larger),
    np.minimum: _or_nan(smaller),
    np.where: lambda emit, test, yes, no: emit("choice", test, yes, no),
    np.sign: _sign,
    np.isnan: _is_nan,
    np.floor: _call("np.floor"),
    np.ceil: _call("np.ceil"),
    **{getattr(np, name): _call(f"math.{ours}") for name, ours in _SAME_IN_NUMPY.items()},
}
"""Functions of numbers, or of arrays number by number."""
