"""The kernel of `LayerNorm`: against PyTorch in float64, and the same bits under cuts and threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels.layer_form import LayerFormKernel
from partita.engine.kernels.layer_norm import LayerNormKernel
from partita.layers import LayerNorm
from partita.layers.box import Shape
from tests.draws import examples
from tests.kernels.cases import case, play, seeds
from tests.properties.kernels import assert_same_bits

shapes = st.sampled_from([(2, 1), (5, 7), (9, 33), (4, 3, 6)])


@given(shapes, st.integers(1, 20), st.sampled_from(["float32", "float64"]), st.booleans(), seeds)
@settings(max_examples=examples(12))
def test_equals_pytorch_in_float64(shape: Shape, batch: int, precision: str, scale: bool, seed: int) -> None:
    """Beside a mean of 3, which a sum of squares less a square of sums would not survive."""
    dtype = np.dtype(precision).type
    given_case = case(LayerNorm(scale=scale, epsilon=1e-2), shape, batch=batch, seed=seed, dtype=dtype)
    given_case = replace(given_case, inputs=(given_case.inputs[0] + dtype(3),))
    assert isinstance(given_case.kernel(), LayerNormKernel)
    x, grad, *parameters = (
        torch.from_numpy(one.astype(np.float64))
        for one in (*given_case.inputs, given_case.error, *given_case.parameters)
    )
    for one in (x, *parameters):
        one.requires_grad_()
    out = torch.nn.functional.layer_norm(x.movedim(-1, 0), shape[-1:], *parameters, eps=1e-2).movedim(0, -1)
    out.backward(grad)
    found, close = play(given_case), {"float32": 1e-4, "float64": 1e-11}[precision]
    pairs = zip(
        (found.state, *found.errors, *found.gradients),
        (out.detach(), *(one.grad for one in (x, *parameters))),
        strict=True,
    )
    for ours, expected in pairs:
        assert expected is not None
        np.testing.assert_allclose(ours, expected.numpy(), rtol=close, atol=close * 30)


@pytest.mark.parametrize("shape", [(6, 5), (5, 2, 3)])
@pytest.mark.parametrize("cuts", [(1,), (2, 3)])
def test_neither_cuts_nor_threads_show_in_the_bits(shape: Shape, cuts: tuple[int, ...]) -> None:
    """But for the sums over machines, which gradients of parameters are."""
    given_case = case(LayerNorm(), shape, batch=17, dtype=np.float32)
    whole = play(given_case)
    assert_same_bits(play(given_case, threads=2), whole)
    found = play(given_case, *cuts, extra=1)
    assert_same_bits(replace(found, gradients=whole.gradients), whole)
    for one, other in zip(found.gradients, whole.gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_features_as_rows_and_bfloat16_run_by_forward() -> None:
    assert isinstance(case(LayerNorm(), (5,), batch=2).kernel(), LayerFormKernel)
    assert isinstance(case(LayerNorm(), (4, 5), batch=2).rounded.kernel(), LayerFormKernel)
