"""Assertions over the kernels of layers at special inputs, on any device."""

from __future__ import annotations

import numpy as np

from partita.layers import Conv2D, LocalContrastNormalisation2D
from partita.layers.pooling import Pool2D
from tests.kernels.cases import Case, case, play
from tests.properties.kernels import assert_true


def assert_ties_and_zeros(pool: type[Pool2D]) -> None:
    """Asserts that a pool treats several maxima and patches of zeros as the definition does."""
    given_case = with_ties(case(pool(3, stride=2), (7, 7, 2), batch=5))
    assert_true(given_case, play(given_case))
    assert_true(given_case, play(given_case, 1, 2))


def assert_patch_on_padding_is_bias() -> None:
    """Asserts that a patch which sees padding alone has its bias as activation."""
    given_case = case(Conv2D(1, 2, stride=3, padding=1, dilation=4), (3, 3, 1), batch=2)
    assert given_case.grid.shape == (1, 1, 1)
    np.testing.assert_array_equal(play(given_case).state, given_case.parameters[1][0])


def assert_nan_stays_in_neighbourhood() -> None:
    """Asserts that a NaN spreads over its neighbourhood and no further."""
    given_case = case(LocalContrastNormalisation2D(3), (6, 6, 1), batch=2)
    given_case.inputs[0][2, 3, 0, 1] = np.nan
    kernel = given_case.kernel()
    kernel.forward()()
    state = kernel.arrays.output
    assert np.isnan(state[1:4, 2:5, 0, 1]).all()
    assert np.isnan(state).sum() == 9


def with_ties(given_case: Case) -> Case:
    """Whole numbers from -1 to 1: many patches have several maxima, or nothing but zeros."""
    few = np.rint(np.clip(given_case.inputs[0], -1, 1)).astype(given_case.dtype)
    return Case(given_case.grid, given_case.sources, (few,), (), given_case.error)
