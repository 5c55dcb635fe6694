"""Functions of compiled code in plain Python: for Numba's simulator of a GPU, which compiles nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def upcast(x: Any) -> Any:
    """Converts to a number, as `precision.upcast`."""
    return (np.uint32(x) << np.uint32(16)).view(np.float32) if isinstance(x, np.uint16) else x


def downcast(value: Any, like: Any) -> Any:
    """Converts to storage type, as `precision.downcast`."""
    if not isinstance(like, np.uint16):
        return type(like)(value)
    bits = int(np.float32(value).view(np.uint32))
    if math.isnan(value):
        return np.uint16((bits | 0x400000) >> 16)
    return np.uint16((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)  # ties to even


def fma(a: Any, b: Any, c: Any) -> Any:
    """Computes `compiled.fma`; in float64 it rounds twice."""
    return type(a)(float(a) * float(b) + float(c))


def exponential(x: Any) -> Any:
    """Computes `functions.exponential` by NumPy."""
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(x)


def hyperbolic_tangent(x: Any) -> Any:
    """Computes `functions.hyperbolic_tangent` by NumPy."""
    return np.tanh(x)
