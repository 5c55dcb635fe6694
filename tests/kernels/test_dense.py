"""Fully connected layers: against the node definition, in pieces, in blocks, in rows, and in bfloat16."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels import Call
from partita.engine.numerics import upcast_array
from partita.layers import Dense
from tests.draws import examples
from tests.kernels.cases import activations, batches, case, cut_points, play, seeds
from tests.kernels.dense_cases import PRECISIONS, played
from tests.kernels.drawn_layers import dense_shapes
from tests.kernels.matrices import stored
from tests.properties.dense import (
    assert_blocks_equal_whole,
    assert_blocks_round_once,
    assert_gradients_by_rows_equal_whole,
    assert_near,
    assert_rows_written_or_added,
)
from tests.properties.kernels import assert_true


@given(st.data(), st.integers(1, 7), dense_shapes, activations, st.booleans(), batches, seeds)
@settings(max_examples=examples(16))
def test_equals_its_node_definition_whole_and_in_pieces(
    data: st.DataObject,
    units: int,
    shape: tuple[int, ...],
    activation: str,
    use_bias: bool,
    batch: int,
    seed: int,
) -> None:
    given_case = case(Dense(units, activation=activation, use_bias=use_bias), shape, batch=batch, seed=seed)
    cuts = data.draw(cut_points(given_case.grid.n_rows)) if data.draw(st.booleans()) else ()
    assert_true(given_case, play(given_case, *cuts))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("activation", ["tanh", "linear"])
@pytest.mark.parametrize("blocks", [[(0, 6)], [(2, 4), (0, 2), (4, 6)], [(3, 6), (0, 3)]])
def test_a_sum_in_blocks_equals_the_whole(
    blocks: list[tuple[int, int]], activation: str, use_bias: bool, precision: str
) -> None:
    assert_blocks_equal_whole(blocks, activation, use_bias, precision)


def test_a_sum_of_blocks_in_bfloat16_is_rounded_once() -> None:
    """64 + 7 x 0.25 is 65.75, which becomes 66; rounded after each term it would stay 64."""
    assert_blocks_round_once()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_errors_of_some_rows_are_written_or_added(precision: str) -> None:
    assert_rows_written_or_added(precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@given(cuts=cut_points(9))
@settings(max_examples=examples(8))
def test_gradients_of_runs_of_rows_are_those_of_the_whole(precision: str, cuts: list[int]) -> None:
    assert_gradients_by_rows_equal_whole(precision, cuts)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "relu", "linear"])
def test_a_whole_step_is_near_float64(activation: str, precision: str) -> None:
    layer = played(Dense(8, activation=activation), 50, batch=16, precision=precision)
    given_case, kernel = layer.given, layer.kernel
    gradients = layer.gradients(8)
    calls = [
        kernel.forward(),
        kernel.backward_activation(),
        kernel.backward_input(0, ((0, 50),), accumulate=False),
        kernel.backward_parameters(gradients),
    ]
    state = given_case.reference.forward(given_case.inputs, given_case.parameters)
    for call in calls:
        call()
    assert_near(layer.arrays.output, state, precision)
    # Downward from the states that were found: where a state is rounded its slope is another, and not worse.
    errors, true = given_case.reference.backward(
        given_case.inputs, layer.state.astype(np.float64), given_case.error, given_case.parameters
    )
    for found, expected in zip((layer.arrays.grad_input(0), *gradients), (*errors, *true), strict=True):
        scale = np.abs(expected).max()
        assert_near(found, expected, precision) if precision != "bfloat16" else np.testing.assert_allclose(
            upcast_array(found), expected, atol=0.02 * scale
        )


def test_a_float32_case_of_the_other_tests_too() -> None:
    downcast = case(Dense(8, activation="sigmoid"), (50,), batch=16, dtype=np.float32)
    assert_true(downcast, play(downcast), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_threads_do_not_show_in_what_is_not_a_product(precision: str) -> None:
    one, two = (
        played(Dense(9, activation="sigmoid"), 6, batch=8, precision=precision, threads=n) for n in (1, 2)
    )
    for layer in (one, two):
        layer.arrays.output[...] = stored(np.random.default_rng(0).normal(size=(9, 8)), precision)
        layer.kernel.backward_activation()()
        layer.kernel.pool.close()
    assert one.arrays.own_grad.tobytes() == two.arrays.own_grad.tobytes()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_step_allocates_nothing(precision: str) -> None:
    layer = played(Dense(60, activation="sigmoid"), 70, batch=64, precision=precision)
    kernel, gradients = layer.kernel, layer.gradients(60)
    calls: list[Call] = [
        kernel.forward(block=(0, 30), first=True, last=False),
        kernel.forward(block=(30, 70), first=False, last=True),
        kernel.backward_activation(),
        kernel.backward_input(0, ((0, 40),), accumulate=False),
        kernel.backward_input(0, ((40, 70),), accumulate=True),
        kernel.backward_parameters(gradients),
        kernel.forward(),
    ]
    for _ in range(2):
        tracemalloc.start()
        for call in calls:
            call()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < layer.arrays.output.nbytes / 4
