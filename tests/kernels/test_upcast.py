"""A kernel that knows only float32 plays bfloat16 on upcast copies: what it returns is rounded once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from partita.engine.kernels import Array, ThreadPool
from partita.engine.kernels.dense import DenseKernel
from partita.engine.kernels.upcast import UpcastKernel
from partita.engine.numerics import upcast_array
from partita.layers import Add, AveragePool2D, Dense, L2Pool2D, Layer, MaxPool2D
from tests.kernels.cases import Case, case, play
from tests.properties.kernels import assert_same_bits, assert_true

LAYERS = [
    (MaxPool2D(3, stride=2), ((9, 7, 4),)),
    (AveragePool2D(3, stride=2), ((9, 7, 4),)),
    (L2Pool2D(2), ((8, 8, 3),)),
    (Add(), ((5, 3), (5, 3), (5, 3))),
]


def drawn(layer: Layer, shapes: Sequence[tuple[int, ...]]) -> Case:
    return case(layer, *shapes, batch=17, dtype=np.float32).rounded


@pytest.mark.parametrize(("layer", "shapes"), LAYERS)
@pytest.mark.parametrize("cuts", [(), (1, 2)])
def test_equals_its_node_definition(
    layer: Layer, shapes: Sequence[tuple[int, ...]], cuts: tuple[int, ...]
) -> None:
    given_case = drawn(layer, shapes)
    played = play(given_case, *cuts)
    assert played.state.dtype == played.errors[0].dtype == np.uint16
    assert_true(given_case, played, rtol=2.0**-8 * (1 + len(cuts)), atol=2.0**-8)


@pytest.mark.parametrize(("layer", "shapes"), LAYERS)
def test_threads_change_no_bit(layer: Layer, shapes: Sequence[tuple[int, ...]]) -> None:
    given_case = drawn(layer, shapes)
    assert_same_bits(play(given_case, threads=3), play(given_case))


def test_blocks_activations_and_gradients_go_through() -> None:
    """A dense layer in two blocks, with the kernel of float32."""
    given_case = drawn(Dense(5, activation="tanh"), ((6, 2),))
    context = given_case.context()
    arrays = given_case.arrays(context)
    kernel = UpcastKernel(DenseKernel, context, arrays, ThreadPool(1))
    kernel.forward(block=(0, 4), last=False)()
    kernel.forward(block=(4, 6), first=False)()
    kernel.backward_activation()()
    gradients: list[Array] = [np.zeros(p.shape, np.float32) for p in arrays.parameters]
    kernel.backward_parameters(gradients)()
    kernel.backward_input(0, ((0, 6),), accumulate=False)()
    once = upcast_array(arrays.grad_input(0))
    kernel.backward_input(0, ((0, 6),), accumulate=True)()
    np.testing.assert_allclose(upcast_array(arrays.grad_input(0)), 2 * once, rtol=2.0**-6, atol=2.0**-6)
    wide = given_case.upcast
    state = wide.reference.forward(wide.inputs, wide.parameters)
    errors, expected = wide.reference.backward(wide.inputs, state, wide.error, wide.parameters)
    np.testing.assert_allclose(upcast_array(arrays.output), state, rtol=2.0**-7)
    np.testing.assert_allclose(once, errors[0], atol=0.1)
    for found, gradient in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(found, gradient, atol=0.15)
