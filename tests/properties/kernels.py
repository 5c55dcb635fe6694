"""Assertions over the results of kernels: equal to the node definition, or to each other to the bit."""

from __future__ import annotations

import numpy as np

from partita.engine.numerics import upcast_array
from tests.kernels.cases import Case, Played


def assert_true(given: Case, played: Played, *, rtol: float = 1e-9, atol: float = 1e-9) -> None:
    """Asserts that the results equal the node definition in plain float64."""
    given = given.upcast
    state = given.reference.forward(given.inputs, given.parameters)
    np.testing.assert_allclose(upcast_array(played.state), state, rtol=rtol, atol=atol)
    errors, gradients = given.reference.backward(given.inputs, state, given.error, given.parameters)
    for found, expected in zip((*played.errors, *played.gradients), (*errors, *gradients), strict=True):
        np.testing.assert_allclose(upcast_array(found), expected, rtol=rtol, atol=atol)


def assert_same_bits(found: Played, expected: Played) -> None:
    """Asserts that no bit differs, signs of zeros included."""
    assert found.state.tobytes() == expected.state.tobytes(), "states differ"
    for a, b in zip(found.errors, expected.errors, strict=True):
        assert a.tobytes() == b.tobytes(), "errors differ"
    for a, b in zip(found.gradients, expected.gradients, strict=True):
        assert a.tobytes() == b.tobytes(), "gradients differ"
