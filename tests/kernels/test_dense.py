"""Fully connected layers: against the node definition, in pieces and in blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels import build
from partita.layers import Dense
from tests.kernels.cases import activations, assert_true, batches, case, cut_points, play, seeds

shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


@given(st.data(), st.integers(1, 7), shapes, activations, st.booleans(), batches, seeds)
@settings(max_examples=40)
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


@pytest.mark.parametrize("blocks", [[(0, 6)], [(2, 4), (0, 2), (4, 6)], [(3, 6), (0, 3)]])
def test_a_sum_in_blocks_equals_the_whole(blocks: list[tuple[int, int]]) -> None:
    given_case = case(Dense(5, activation="tanh"), (6, 2, 3), batch=4)
    kernel, state = build(given_case.site()), np.full_like(given_case.error, np.nan)
    for _ in range(2):  # the second step finds its scratch
        for i, block in enumerate(blocks):
            last = i == len(blocks) - 1
            kernel.up(given_case.inputs, state, given_case.parameters, block=block, first=i == 0, last=last)
        expected = given_case.reference.states(given_case.inputs, given_case.parameters)
        np.testing.assert_allclose(state, expected, rtol=1e-10)


def test_errors_of_some_rows_are_written_or_added() -> None:
    given_case = case(Dense(5), (6, 2), batch=4)
    whole, kernel = play(given_case), build(given_case.site())
    given = {
        "sources": given_case.inputs,
        "state": whole.state,
        "delta": given_case.error,
        "parameters": given_case.parameters,
    }
    out = np.full((6, 2, 4), 7.0)
    kernel.errors(0, ((0, 2), (3, 4)), out, accumulate=False, **given)
    np.testing.assert_allclose(out[[0, 1, 3]], whole.errors[0][[0, 1, 3]], rtol=1e-10)
    assert (out[[2, 4, 5]] == 7).all()
    kernel.errors(0, ((1, 3),), out, accumulate=True, **given)
    np.testing.assert_allclose(out[1], 2 * whole.errors[0][1], rtol=1e-10)
    np.testing.assert_allclose(out[2], 7 + whole.errors[0][2], rtol=1e-10)


def test_float32_stays_near_float64() -> None:
    narrow = case(Dense(8, activation="sigmoid"), (50,), batch=16, dtype=np.float32)
    assert_true(narrow, play(narrow), rtol=1e-4, atol=1e-4)
