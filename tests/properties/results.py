"""Assertions over the results of steps: the same numbers, to the bit or within a tolerance."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from tests.truth.interleaved import Result


def assert_same(
    found: Result,
    expected: Result,
    *,
    tolerance: float,
    rounded: Collection[str] = (),
    rounding: float = 1e-5,
) -> None:
    """Asserts equality to the bit where the tolerance is 0; else relative to the largest number of each
    array.

    Names that are `rounded` need agree within `rounding` only.
    """
    for kind in ("states", "errors", "gradients"):
        ours, theirs = getattr(found, kind), getattr(expected, kind)
        assert ours.keys() == theirs.keys()
        for name, array in theirs.items():
            allowed = max(tolerance, rounding if name in rounded else 0.0)
            if allowed:
                scale = max(1.0, float(np.abs(array).max(initial=0.0)))
                np.testing.assert_allclose(
                    ours[name], array, rtol=0, atol=allowed * scale, err_msg=f"{kind} {name}"
                )
            else:
                np.testing.assert_array_equal(ours[name], array, err_msg=f"{kind} {name}")


def assert_close(found: Result, expected: Result, *, tolerance: float) -> None:
    assert math.isclose(found.loss, expected.loss, rel_tol=tolerance, abs_tol=tolerance)
    for name, array in expected.parameters.items():
        scale = max(1.0, float(np.abs(array).max(initial=0.0)))
        np.testing.assert_allclose(
            found.parameters[name], array, rtol=0, atol=tolerance * scale, err_msg=name
        )
