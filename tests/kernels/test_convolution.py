"""Convolutions: against the node definition and torch, in pieces to the bit, against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels import Array
from partita.engine.kernels.check import differences
from partita.layers import Conv2D
from tests.draws import examples
from tests.kernels.cases import Case, Played, case, cut_points, play
from tests.kernels.drawn_layers import convolution_cases
from tests.properties.kernels import assert_same_bits, assert_true
from tests.properties.layers import assert_patch_on_padding_is_bias


@given(st.data(), convolution_cases(sizes=st.sampled_from([1, 5, 16, 19])))
@settings(max_examples=examples(12))
def test_equals_its_node_definition_whole_and_in_pieces(data: st.DataObject, given_case: Case) -> None:
    cuts = data.draw(cut_points(given_case.grid.n_rows)) if data.draw(st.booleans()) else ()
    assert_true(given_case, play(given_case, *cuts, extra=data.draw(st.integers(0, 2))))


@pytest.mark.slow
@given(st.data(), convolution_cases(sizes=st.sampled_from([16, 17, 33]), dtype=np.float32, plain=True))
@settings(max_examples=examples(16))
def test_pieces_and_threads_give_the_bits_of_the_whole(data: st.DataObject, given_case: Case) -> None:
    """All but the gradients of pieces, whose sums are those of their own rows.

    From 16 examples on, and without groups and gaps.
    """
    cuts = data.draw(cut_points(given_case.grid.n_rows))
    whole = play(given_case)
    pieces = play(given_case, *cuts, extra=data.draw(st.integers(0, 2)))
    for found, expected in zip(pieces.gradients, whole.gradients, strict=True):
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * scale)
    assert_same_bits(Played(pieces.state, pieces.errors, whole.gradients), whole)
    assert_same_bits(play(given_case, threads=3), whole)


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [(), (2, 3)])
@pytest.mark.parametrize(("groups", "activation"), [(1, "relu"), (2, "linear")])
def test_bfloat16_rounds_once(groups: int, activation: str, cuts: tuple[int, ...]) -> None:
    layer = Conv2D(6, 3, stride=2, padding=1, groups=groups, activation=activation)
    given_case = case(layer, (9, 8, 4), batch=19, dtype=np.float32).rounded
    played = play(given_case, *cuts)
    assert played.state.dtype == np.uint16
    assert played.gradients[0].dtype == np.float32
    if cuts:
        assert_true(given_case, played, rtol=2.0**-6, atol=2.0**-4)  # sums are rounded where they are cut
    else:
        assert_true(given_case, played, rtol=2.0**-7, atol=2.0**-5)


@pytest.mark.parametrize(
    ("filters", "picture", "settings_"),
    [
        (19, (9, 8, 12), {}),  # more rows and lanes than fill whole tiles
        (8, (9, 9, 3), {"stride": 2, "padding": 2}),
        (12, (10, 9, 6), {"padding": "same", "dilation": (2, 3), "groups": 3}),
    ],
)
def test_equals_torch(filters: int, picture: tuple[int, int, int], settings_: dict[str, Any]) -> None:
    given_case = case(Conv2D(filters, 3, **settings_), picture, batch=37)
    played = play(given_case)
    x = torch.from_numpy(given_case.inputs[0].transpose(3, 2, 0, 1).copy()).requires_grad_()
    weight = torch.from_numpy(given_case.parameters[0].transpose(0, 3, 1, 2).copy()).requires_grad_()
    bias = torch.from_numpy(given_case.parameters[1].copy()).requires_grad_()
    state = torch.nn.functional.conv2d(x, weight, bias, **settings_)
    state.backward(torch.from_numpy(given_case.error.transpose(3, 2, 0, 1).copy()))
    assert x.grad is not None
    assert weight.grad is not None
    assert bias.grad is not None
    for found, expected in (
        (played.state.transpose(3, 2, 0, 1), state.detach()),
        (played.errors[0].transpose(3, 2, 0, 1), x.grad),
        (played.gradients[0].transpose(0, 3, 1, 2), weight.grad),
        (played.gradients[1], bias.grad),
    ):
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_few_examples_in_bfloat16() -> None:
    layer = Conv2D(24, 3, stride=2, padding=1, dilation=2, groups=2)
    given_case = case(layer, (9, 8, 20), batch=5, dtype=np.float32).rounded
    assert_true(given_case, play(given_case), rtol=2.0**-7, atol=2.0**-4)


def test_gradients_equal_differences() -> None:
    given_case = case(Conv2D(2, 2, dilation=2, activation="tanh"), (4, 4, 2), batch=3)
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


def test_a_patch_on_the_padding_alone_has_the_state_of_its_bias() -> None:
    assert_patch_on_padding_is_bias()
