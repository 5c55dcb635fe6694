"""Locally connected layers: against the node definition, in pieces to the bit, against differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels import Array
from partita.engine.kernels.check import differences
from partita.engine.numerics import downcast_array, upcast_array
from partita.layers import LocallyConnected2D
from tests.draws import examples
from tests.kernels.cases import (
    Case,
    Played,
    batches,
    case,
    cut_points,
    pictures,
    play,
    seeds,
)
from tests.kernels.drawn_layers import locally_connected
from tests.properties.kernels import assert_same_bits, assert_true

many = st.sampled_from([1, 3, 8, 16, 33, 50])
"""Batches of less than a vector, of some vectors, and of some and a rest."""


@given(st.data(), locally_connected(), pictures(), batches, seeds)
@settings(max_examples=examples(12))
def test_equals_its_node_definition_whole_and_in_pieces(
    data: st.DataObject, layer: LocallyConnected2D, picture: tuple[int, int, int], batch: int, seed: int
) -> None:
    given_case = case(layer, picture, batch=batch, seed=seed)
    cuts = data.draw(cut_points(given_case.grid.n_rows)) if data.draw(st.booleans()) else ()
    assert_true(given_case, play(given_case, *cuts, extra=data.draw(st.integers(0, 2))))


@given(st.data(), locally_connected(), pictures(), many, seeds)
@settings(max_examples=examples(16))
def test_pieces_and_threads_give_the_bits_of_the_whole(
    data: st.DataObject, layer: LocallyConnected2D, picture: tuple[int, int, int], batch: int, seed: int
) -> None:
    given_case = case(layer, picture, batch=batch, seed=seed, dtype=np.float32)
    cuts = data.draw(cut_points(given_case.grid.n_rows))
    whole = play(given_case)
    assert_same_bits(play(given_case, *cuts, extra=data.draw(st.integers(0, 2))), whole)
    assert_same_bits(play(given_case, threads=3), whole)


@given(st.data(), locally_connected(), pictures(), many, seeds)
@settings(max_examples=examples(12))
def test_equals_torch(
    data: st.DataObject, layer: LocallyConnected2D, picture: tuple[int, int, int], batch: int, seed: int
) -> None:
    given_case = case(replace(layer, activation="linear"), picture, batch=batch, seed=seed)
    played = play(given_case, *data.draw(cut_points(given_case.grid.n_rows)))
    for found, expected in zip(
        (played.state, *played.errors, *played.gradients), _by_torch(given_case), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def _by_torch(given_case: Case) -> list[Array]:
    """State, errors and gradients of a linear layer: unfold, einsum and autograd."""
    layer, shape = given_case.grid.layer, given_case.grid.shape
    assert isinstance(layer, LocallyConnected2D)
    x, *parameters = (
        torch.from_numpy(array).requires_grad_() for array in (*given_case.inputs, *given_case.parameters)
    )
    y_axis, x_axis = layer.connectivity.axes(x.shape[:3])
    padding = []
    for axis, extent in ((x_axis, x.shape[1]), (y_axis, x.shape[0])):
        padding += [axis.before, (axis.out - 1) * axis.stride + axis.size - axis.before - extent]
    padded = torch.nn.functional.pad(x.permute(3, 2, 0, 1), padding)
    patches = torch.nn.functional.unfold(
        padded, (y_axis.size, x_axis.size), stride=(y_axis.stride, x_axis.stride)
    )
    patches = patches.reshape(len(patches), x.shape[2], -1, *shape[:2])
    weight = parameters[0].reshape(*shape, -1, x.shape[2])
    state = torch.einsum("eckyx,yxfkc->yxfe", patches, weight)
    state = state + parameters[1][..., None] if len(parameters) > 1 else state
    state.backward(torch.from_numpy(given_case.error))
    return [
        state.detach().numpy(),
        *(array.grad.numpy() for array in (x, *parameters) if array.grad is not None),
    ]


@pytest.mark.slow
@given(st.data(), locally_connected(), pictures(), many, seeds)
@settings(max_examples=examples(12))
def test_bfloat16_rounds_what_it_stores_and_nothing_else(
    data: st.DataObject, layer: LocallyConnected2D, picture: tuple[int, int, int], batch: int, seed: int
) -> None:
    """States and errors are those of float32 on the same numbers, rounded; gradients those of float32."""
    given_case = case(replace(layer, activation="linear"), picture, batch=batch, seed=seed, dtype=np.float32)
    rounded = given_case.rounded
    cuts = data.draw(cut_points(rounded.grid.n_rows))
    whole, wide = play(rounded), play(rounded.upcast)
    assert_same_bits(whole, Played(_rounded(wide.state), (_rounded(wide.errors[0]),), wide.gradients))
    assert_same_bits(play(rounded, threads=3), whole)
    pieces = play(rounded, *cuts)  # the errors of rows that pieces share are rounded on their way
    assert_same_bits(Played(pieces.state, whole.errors, pieces.gradients), whole)
    (found,), (expected,) = pieces.errors, wide.errors
    np.testing.assert_allclose(
        upcast_array(found), expected, rtol=2.0**-7, atol=2.0**-6 * abs(expected).max()
    )


def _rounded(array: Array) -> Array:
    return downcast_array(array, np.empty(array.shape, np.uint16))


def test_learns_in_blocks_what_it_learns_whole() -> None:
    given_case = case(LocallyConnected2D(5, 3, padding=1), (9, 7, 2), batch=12, dtype=np.float32)
    kernel = given_case.kernel()
    whole, block = (
        [np.full((rows, *p.shape[1:]), np.nan, np.float32) for p in given_case.parameters] for rows in (9, 2)
    )
    kernel.backward_parameters(whole)()
    for start, stop in ((0, 2), (2, 4), (7, 9)):
        kernel.backward_parameters(block, (start, stop))()
        for found, expected in zip(block, whole, strict=True):
            assert found.tobytes() == expected[start:stop].tobytes()


def test_calls_may_be_made_again_and_read_what_is_there_then() -> None:
    given_case = case(LocallyConnected2D(3, 3), (6, 6, 2), batch=4)
    kernel = given_case.kernel()
    up, arrays = kernel.forward(), kernel.arrays
    up()
    before = arrays.output.copy()
    up()
    np.testing.assert_array_equal(arrays.output, before)
    arrays.parameters[1][...] += 1
    up()
    np.testing.assert_allclose(arrays.output, before + 1, rtol=1e-12)


def test_gradient_of_a_weight_on_padding_is_zero() -> None:
    given_case = case(LocallyConnected2D(2, 3, padding=1), (4, 4, 1), batch=3)
    weight = play(given_case).gradients[0]
    assert not weight[0, :, :, :3].any()
    assert weight[0, 1, :, 3:].all()


def test_gradients_equal_differences() -> None:
    given_case = case(LocallyConnected2D(2, 2, activation="tanh"), (4, 3, 2), batch=3)
    played = play(given_case)

    def reached(inputs: Array, weight: Array, bias: Array) -> float:
        return float((given_case.reference.forward([inputs], [weight, bias]) * given_case.error).sum())

    x, (weight, bias) = given_case.inputs[0], given_case.parameters
    expected = (
        differences(lambda moved: reached(moved, weight, bias), x),
        differences(lambda moved: reached(x, moved, bias), weight),
        differences(lambda moved: reached(x, weight, moved), bias),
    )
    for found, by_differences in zip((*played.errors, *played.gradients), expected, strict=True):
        np.testing.assert_allclose(found, by_differences, rtol=1e-6, atol=1e-6)


def test_float32_stays_near_float64() -> None:
    single = case(LocallyConnected2D(5, 3, activation="sigmoid"), (8, 8, 3), batch=16, dtype=np.float32)
    assert_true(single, play(single), rtol=1e-4, atol=1e-4)
