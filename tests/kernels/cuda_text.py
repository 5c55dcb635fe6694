"""Runs the text of a CUDA kernel as plain Python."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from partita.engine.kernels.cuda import node as node_kernels


def plain(text: str) -> dict[str, Any]:
    """The kernels of a text as functions of Python; what is not set is NaN."""
    names: dict[str, Any] = {
        "math": math,
        "np": np,
        "R": np.float64,
        "strided": range,
        "device": lambda function: function,
        "cuda": SimpleNamespace(local=SimpleNamespace(array=lambda n, kind: np.full(n, np.nan, kind))),
        "upcast": lambda value: value,
        "downcast": lambda value, like: value,
        "fma": lambda a, b, c: a * b + c,
        "exponential": math.exp,
        "hyperbolic_tangent": math.tanh,
        "within": node_kernels._within,
        "kept": node_kernels._kept,
        "keep": node_kernels._keep,
        "number": lambda parameter, edge, k: parameter[edge + k] if k >= 0 else math.nan,
        "incoming_at": lambda x, senders, first, k, e: _incoming_at(x, senders, first, k, e),
    }
    exec(text, names)
    return names


def _incoming_at(x: Any, senders: Any, first: int, k: int, e: int) -> float:
    if k < 0:
        return math.nan
    return float(x[senders[first + k], e]) if senders[first + k] >= 0 else 0.0
