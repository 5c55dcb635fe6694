"""Assertions over products of matrices."""

from __future__ import annotations

import numpy as np

from partita.engine.kernels import Array
from partita.engine.numerics import upcast_array

ROUNDING = {"float32": 2.0**-24, "float64": 2.0**-53, "bfloat16": 2.0**-8}


def wide(numbers: Array) -> Array:
    return upcast_array(np.ascontiguousarray(numbers)).astype(np.float64)


def assert_product(a: Array, b: Array, out: Array, precision: str, *, roundings: int = 1) -> None:
    """Within the rounding of the result and that of the sums; of results in between too, if there are any."""
    expected, sums = wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b))
    of_sums = 2.0**-53 if precision == "float64" else 2.0**-24
    allowed = ROUNDING[precision] * np.abs(expected) + (a.shape[1] + 1) * of_sums * sums
    allowed += (roundings - 1) * ROUNDING[precision] * sums
    assert (np.abs(wide(out) - expected) <= allowed).all()
