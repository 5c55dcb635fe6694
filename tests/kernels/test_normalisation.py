"""Local contrast normalisation: against the node definition and torch, in pieces to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels import Array
from partita.engine.kernels.check import differences
from partita.layers import LocalContrastNormalisation2D
from tests.draws import examples
from tests.kernels.cases import Case, batches, case, cut_points, pictures, play, seeds
from tests.kernels.drawn_layers import normalisations
from tests.properties.kernels import assert_same_bits, assert_true
from tests.properties.layers import assert_nan_stays_in_neighbourhood


@given(st.data(), normalisations(), pictures(), batches, seeds)
@settings(max_examples=examples(10))
def test_equals_its_node_definition_whole_and_in_pieces(
    data: st.DataObject,
    layer: LocalContrastNormalisation2D,
    picture: tuple[int, int, int],
    batch: int,
    seed: int,
) -> None:
    given_case = case(layer, picture, batch=batch, seed=seed)
    cuts = data.draw(cut_points(given_case.grid.n_rows)) if data.draw(st.booleans()) else ()
    played = play(given_case, *cuts, extra=data.draw(st.integers(0, 2)))
    assert_true(given_case, played, rtol=1e-6, atol=1e-6)  # a deviation of almost zero is hard to know


@pytest.mark.slow
@given(st.data(), normalisations(), pictures(), st.sampled_from([1, 3, 16, 33]), seeds)
@settings(max_examples=examples(16))
def test_pieces_and_threads_give_the_bits_of_the_whole(
    data: st.DataObject,
    layer: LocalContrastNormalisation2D,
    picture: tuple[int, int, int],
    batch: int,
    seed: int,
) -> None:
    given_case = case(layer, picture, batch=batch, seed=seed, dtype=np.float32)
    cuts = data.draw(cut_points(given_case.grid.n_rows))
    whole = play(given_case)
    assert_same_bits(play(given_case, *cuts, extra=data.draw(st.integers(0, 2))), whole)
    assert_same_bits(play(given_case, threads=3), whole)


def in_torch(layer: LocalContrastNormalisation2D, x: torch.Tensor) -> torch.Tensor:
    """The same with whole tensors `[example, channel, row, column]`."""
    n_channels = x.shape[1]
    rows, columns = (torch.tensor(weights, dtype=x.dtype) for weights in layer.windows)
    window = (torch.outer(rows, columns) / n_channels).expand(1, n_channels, -1, -1)
    padding = len(rows) // 2, len(columns) // 2
    mean = torch.nn.functional.conv2d(x, window, padding=padding)
    variance = torch.nn.functional.conv2d(x * x, window, padding=padding) - mean * mean
    return (x - mean) / variance.sqrt().clamp(min=layer.floor)


@pytest.mark.parametrize("floor", [0.01, 0.9])
def test_equals_torch(floor: float) -> None:
    layer = LocalContrastNormalisation2D((5, 3), floor=floor)
    given_case = case(layer, (9, 7, 4), batch=6)
    played = play(given_case, 4)
    x = torch.from_numpy(given_case.inputs[0].transpose(3, 2, 0, 1).copy()).requires_grad_()
    state = in_torch(layer, x)
    state.backward(torch.from_numpy(given_case.error.transpose(3, 2, 0, 1).copy()))
    assert x.grad is not None
    found = played.state.transpose(3, 2, 0, 1), played.errors[0].transpose(3, 2, 0, 1)
    np.testing.assert_allclose(found[0], state.detach().numpy(), rtol=1e-9)
    np.testing.assert_allclose(found[1], x.grad.numpy(), rtol=1e-8, atol=1e-10)


def test_errors_equal_differences() -> None:
    given_case = case(LocalContrastNormalisation2D(3, floor=0.7), (4, 3, 2), batch=2)

    def reached(inputs: Array) -> float:
        return float((given_case.reference.forward([inputs]) * given_case.error).sum())

    expected = differences(reached, given_case.inputs[0])
    np.testing.assert_allclose(play(given_case).errors[0], expected, rtol=1e-6, atol=1e-6)


def far_from_zero(given_case: Case, by: float) -> Case:
    given_case.inputs[0][...] += by
    return given_case


@pytest.mark.slow
def test_a_mean_far_from_zero_costs_no_accuracy() -> None:
    """Inside, where no zeros outside the picture matter, a constant more in all states changes little."""
    layer = LocalContrastNormalisation2D(3)
    near = play(case(layer, (7, 7, 2), batch=4, dtype=np.float32)).state
    far = play(far_from_zero(case(layer, (7, 7, 2), batch=4, dtype=np.float32), 1000.0)).state
    np.testing.assert_allclose(far[1:-1, 1:-1], near[1:-1, 1:-1], atol=1e-3)


def test_an_even_picture_is_divided_by_the_floor() -> None:
    given_case = case(LocalContrastNormalisation2D(3, floor=0.5), (5, 5, 2), batch=3, dtype=np.float32)
    given_case.inputs[0][...] = 7.0
    played = play(given_case)
    assert np.abs(played.state[1:-1, 1:-1]).max() < 1e-5
    assert np.isfinite(played.errors[0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [(), (2, 5)])
def test_bfloat16_rounds_once(cuts: tuple[int, ...]) -> None:
    given_case = case(LocalContrastNormalisation2D(5), (8, 6, 3), batch=17, dtype=np.float32).rounded
    played = play(given_case, *cuts)
    assert played.state.dtype == np.uint16
    assert_true(given_case, played, rtol=2.0**-8, atol=2.0**-6 if cuts else 2.0**-8)


def test_a_state_that_is_no_number_spreads_over_its_neighbourhood() -> None:
    assert_nan_stays_in_neighbourhood()
