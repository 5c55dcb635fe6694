"""Activations and sums: against the node definition, in pieces to the bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels import KernelContext, build
from partita.layers import Activation, Add, Layer
from tests.draws import examples
from tests.kernels.cases import batches, case, cut_points, play, seeds
from tests.kernels.drawn_layers import layers_and_inputs
from tests.properties.kernels import assert_same_bits, assert_true


@given(st.data(), layers_and_inputs(), batches, seeds)
def test_equals_its_node_definition_whole_and_in_pieces(
    data: st.DataObject, drawn: tuple[Layer, list[tuple[int, ...]]], batch: int, seed: int
) -> None:
    layer, inputs = drawn
    given_case = case(layer, *inputs, batch=batch, seed=seed)
    cuts = data.draw(cut_points(given_case.grid.n_rows)) if data.draw(st.booleans()) else ()
    assert_true(given_case, play(given_case, *cuts, extra=data.draw(st.integers(0, 2))))


@given(st.data(), layers_and_inputs(), st.sampled_from([1, 3, 16, 33]), seeds)
@settings(max_examples=examples(40))
def test_pieces_and_threads_give_the_bits_of_the_whole(
    data: st.DataObject, drawn: tuple[Layer, list[tuple[int, ...]]], batch: int, seed: int
) -> None:
    layer, inputs = drawn
    given_case = case(layer, *inputs, batch=batch, seed=seed, dtype=np.float32)
    cuts = data.draw(cut_points(given_case.grid.n_rows))
    whole = play(given_case)
    assert_same_bits(play(given_case, *cuts, extra=data.draw(st.integers(0, 2))), whole)
    assert_same_bits(play(given_case, threads=3), whole)


def test_continues_sums_and_clears_rows_that_nobody_feeds() -> None:
    for layer, n_inputs in ((Activation("tanh"), 1), (Add(), 2)):
        given_case = case(layer, *[(6, 2)] * n_inputs, batch=4)
        context = given_case.context((2, 4))
        wide = KernelContext(**{**context.__dict__, "grad_windows": ((0, 6),) * n_inputs})
        arrays = given_case.arrays(wide)
        kernel, out = build(wide, arrays), arrays.grad_input(0)
        kernel.forward()()
        out[...] = 7.0
        kernel.backward_input(0, ((1, 3),), accumulate=False)()
        alone = out[2].copy()
        assert (out[[0, 3, 4, 5]] == 7).all()
        assert not out[1].any()
        kernel.backward_input(0, ((1, 3),), accumulate=True)()
        np.testing.assert_allclose(out[2], 2 * alone, rtol=1e-14)
