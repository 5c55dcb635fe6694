"""Threads that compute rows of their own of a layer's `forward`: the results of one thread."""

from __future__ import annotations

import numpy as np
import pytest

from partita.engine.kernels.layer_form import LayerFormKernel
from partita.engine.kernels.thread_pool import ThreadPool
from partita.layers import Attention, Conv1D, GroupNorm, Layer, LayerNorm, Linear
from tests.kernels.cases import case, play
from tests.properties.kernels import assert_same_bits

LARGE: dict[str, tuple[Layer, tuple[int, ...]]] = {
    "as many rows of the input": (Linear(64), (9, 64)),
    "rows of the same places": (LayerNorm(), (40, 30)),
    "windows that overlap": (Conv1D(64, 3, padding="same"), (9, 48)),
}


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize(("layer", "shape"), LARGE.values(), ids=LARGE)
def test_rows_of_several_threads_are_those_of_one(layer: Layer, shape: tuple[int, ...], threads: int) -> None:
    given = case(layer, shape, batch=48)
    kernel = LayerFormKernel(
        context := given.context(threads=threads), given.arrays(context), pool := ThreadPool(threads)
    )
    kernel.forward()
    pool.close()
    assert len(kernel._pieces) == threads
    found, expected = play(given, threads=threads), play(given)
    np.testing.assert_allclose(found.state, expected.state, rtol=1e-10, atol=1e-12)
    for one, other in zip(
        (*found.errors, *found.gradients), (*expected.errors, *expected.gradients), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("layer", "shape", "why"),
    [
        (Linear(2), (9, 3), "few operations"),
        (GroupNorm(3), (64, 96), "a summary of all rows"),
    ],
)
def test_other_layers_are_computed_at_once(layer: Layer, shape: tuple[int, ...], why: str) -> None:
    given = case(layer, shape, batch=48)
    kernel = LayerFormKernel(
        context := given.context(threads=2), given.arrays(context), pool := ThreadPool(2)
    )
    kernel.forward()
    pool.close()
    assert len(kernel._pieces) == 1, why


def test_threads_divide_the_examples_where_rows_take_unequal_time() -> None:
    given = case(Attention(2, 8, causal=True), (24, 16), (24, 32), batch=41, dtype=np.float32)
    kernel = LayerFormKernel(
        context := given.context(threads=3), given.arrays(context), pool := ThreadPool(3)
    )
    kernel.forward()
    pool.close()
    assert [piece.examples for piece in kernel._pieces.values()] == [(0, 13), (13, 27), (27, 41)]
    assert_same_bits(play(given, threads=3), play(given))
