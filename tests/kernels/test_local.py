"""Locally connected layers: against the node definition, in pieces to the bit, against differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels import Array
from partita.engine.kernels.reference import differences
from partita.layers import LocallyConnected2D
from tests.kernels.cases import (
    activations,
    assert_same_bits,
    assert_true,
    batches,
    case,
    cut_points,
    extents,
    pictures,
    play,
    seeds,
)


@st.composite
def layers(draw: st.DrawFn) -> LocallyConnected2D:
    size = draw(extents)
    smallest = min(size) if isinstance(size, tuple) else size
    return LocallyConnected2D(
        draw(st.integers(1, 6)),
        size,
        stride=draw(extents),
        padding=draw(st.one_of(st.sampled_from(["valid", "same"]), st.integers(0, smallest - 1))),
        activation=draw(activations),
        use_bias=draw(st.booleans()),
    )


@given(st.data(), layers(), pictures(), batches, seeds)
@settings(max_examples=30)
def test_equals_its_node_definition_whole_and_in_pieces(
    data: st.DataObject, layer: LocallyConnected2D, picture: tuple[int, int, int], batch: int, seed: int
) -> None:
    given_case = case(layer, picture, batch=batch, seed=seed)
    cuts = data.draw(cut_points(given_case.grid.n_rows)) if data.draw(st.booleans()) else ()
    assert_true(given_case, play(given_case, *cuts, extra=data.draw(st.integers(0, 2))))


@given(st.data(), layers(), pictures(), st.sampled_from([1, 3, 8, 16, 33]), seeds)
@settings(max_examples=40)
def test_pieces_and_threads_give_the_bits_of_the_whole(
    data: st.DataObject, layer: LocallyConnected2D, picture: tuple[int, int, int], batch: int, seed: int
) -> None:
    given_case = case(layer, picture, batch=batch, seed=seed, dtype=np.float32)
    cuts = data.draw(cut_points(given_case.grid.n_rows))
    whole = play(given_case)
    assert_same_bits(play(given_case, *cuts, extra=data.draw(st.integers(0, 2))), whole)
    assert_same_bits(play(given_case, threads=3), whole)


@pytest.mark.parametrize("filters", [4, 7])
def test_unrolled_blocks_and_their_remainders(filters: int) -> None:
    for channels in (1, 3, 4):  # 3, 9 and 12 inputs in a row of the patch: none, some and only blocks of four
        given_case = case(LocallyConnected2D(filters, 3, stride=2), (7, 7, channels), batch=37, seed=channels)
        assert_true(given_case, play(given_case))


def test_gradient_of_a_weight_on_padding_is_zero() -> None:
    given_case = case(LocallyConnected2D(2, 3, padding=1), (4, 4, 1), batch=3)
    weight = play(given_case).gradients[0]
    assert not weight[0, :, :, :3].any()
    assert weight[0, 1, :, 3:].all()


def test_gradients_equal_differences() -> None:
    given_case = case(LocallyConnected2D(2, 2, activation="tanh"), (4, 3, 2), batch=3)
    played = play(given_case)

    def reached(inputs: Array, weight: Array, bias: Array) -> float:
        return float((given_case.reference.states([inputs], [weight, bias]) * given_case.error).sum())

    x, (weight, bias) = given_case.inputs[0], given_case.parameters
    expected = (
        differences(lambda moved: reached(moved, weight, bias), x),
        differences(lambda moved: reached(x, moved, bias), weight),
        differences(lambda moved: reached(x, weight, moved), bias),
    )
    for found, by_differences in zip((*played.errors, *played.gradients), expected, strict=True):
        np.testing.assert_allclose(found, by_differences, rtol=1e-6, atol=1e-6)


def test_float32_stays_near_float64() -> None:
    narrow = case(LocallyConnected2D(5, 3, activation="sigmoid"), (8, 8, 3), batch=16, dtype=np.float32)
    assert_true(narrow, play(narrow), rtol=1e-4, atol=1e-4)
