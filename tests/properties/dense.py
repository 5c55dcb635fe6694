"""Assertions over the kernels of dense layers, on any device."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from partita.engine.kernels import Array
from partita.engine.numerics import upcast_array
from partita.layers import Dense
from tests.kernels.dense_cases import TOLERANCE, played
from tests.kernels.matrices import stored


def assert_near(found: Array, expected: Array, precision: str) -> None:
    allowed = TOLERANCE[precision]
    np.testing.assert_allclose(upcast_array(found), expected, rtol=allowed, atol=allowed)


def assert_blocks_equal_whole(
    blocks: list[tuple[int, int]], activation: str, use_bias: bool, precision: str
) -> None:
    """Asserts that a forward pass in blocks of inputs equals the definition, also when it is repeated."""
    layer = Dense(5, activation=activation, use_bias=use_bias)
    whole = played(layer, 6, 2, 3, batch=4, precision=precision)
    last = len(blocks) - 1
    calls = [whole.kernel.forward(block=b, first=i == 0, last=i == last) for i, b in enumerate(blocks)]
    expected = whole.given.reference.forward(whole.given.inputs, whole.given.parameters)
    for _ in range(2):
        for call in calls:
            call()
        assert_near(whole.arrays.output, expected, precision)


def assert_blocks_round_once() -> None:
    """Asserts that 64 + 7 x 0.25 = 65.75 becomes 66; rounded after each term it would stay 64."""
    layer = played(Dense(1, use_bias=False), 8, batch=1, precision="bfloat16")
    layer.arrays.inputs[0][...] = stored(np.full((8, 1), 0.25), "bfloat16")
    layer.arrays.inputs[0][0] = stored(np.full(1, 64.0), "bfloat16")
    layer.arrays.parameters[0][...] = stored(np.ones((1, 8)), "bfloat16")
    for i in range(8):
        layer.kernel.forward(block=(i, i + 1), first=i == 0, last=i == 7)()
    assert layer.state == 66


def assert_rows_written_or_added(precision: str) -> None:
    """Asserts that errors of chosen rows are written or accumulated, and that no other row changes."""
    layer = played(Dense(5), 6, 2, batch=4, precision=precision)
    out, kernel = layer.arrays.grad_input(0), layer.kernel
    state = layer.given.reference.forward(layer.given.inputs, layer.given.parameters)
    (expected,), _ = layer.given.reference.backward(
        layer.given.inputs, state, layer.given.error, layer.given.parameters
    )
    kernel.forward()()
    kernel.backward_input(0, ((0, 2), (3, 4)), accumulate=False)()
    assert_near(out[[0, 1, 3]], expected[[0, 1, 3]], precision)
    assert (upcast_array(out[[2, 4, 5]]) == 7).all()
    kernel.backward_input(0, ((1, 3),), accumulate=True)()
    assert_near(out[1], 2 * expected[1], precision)
    assert_near(out[2], 7 + expected[2], precision)


def assert_gradients_by_rows_equal_whole(precision: str, cuts: list[int]) -> None:
    """Asserts that gradients of runs of rows, separated at the cuts, equal those of the whole layer."""
    layer = played(Dense(9, activation="relu"), 4, 3, batch=5, precision=precision)
    state = layer.given.reference.forward(layer.given.inputs, layer.given.parameters)
    layer.kernel.forward()()
    layer.kernel.backward_activation()()
    _, expected = layer.given.reference.backward(
        layer.given.inputs, state, layer.given.error, layer.given.parameters
    )
    whole = layer.gradients(9)
    layer.kernel.backward_parameters(whole)()
    for rows in pairwise([0, *sorted(set(cuts)), 9]):
        piece = layer.gradients(rows[1] - rows[0])
        layer.kernel.backward_parameters(piece, rows)()
        for found, all_rows, true in zip(piece, whole, expected, strict=True):
            assert_near(found, true[slice(*rows)], precision)
            assert_near(all_rows, true, precision)
