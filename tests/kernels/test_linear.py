"""Linear: equal to its definition and to PyTorch's, for cuts by places and by units."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.layers import Linear
from partita.layers.box import Shape
from tests.draws import examples
from tests.kernels.cases import batches, case, cut_points, play, seeds
from tests.networks import FUNCTIONS
from tests.properties.kernels import assert_true

SHAPES = st.sampled_from([(5,), (4, 3), (3, 2, 2)])


@given(st.data(), SHAPES, st.sampled_from(FUNCTIONS), st.booleans(), batches, seeds)
@settings(max_examples=examples(20))
def test_equals_its_node_definition(
    data: st.DataObject, shape: Shape, function: str, use_bias: bool, batch: int, seed: int
) -> None:
    layer = Linear(data.draw(st.integers(1, 5)), activation=function, use_bias=use_bias)
    given_case = case(layer, shape, batch=batch, seed=seed)
    cuts = data.draw(cut_points(given_case.grid.n_rows))
    assert_true(given_case, play(given_case, *cuts, extra=data.draw(st.integers(0, 2))))


@pytest.mark.parametrize("cuts", [(), (2,), (1, 2, 4)])
@pytest.mark.parametrize("axis", [0, -1])
def test_equals_the_module_of_pytorch(axis: int, cuts: tuple[int, ...]) -> None:
    """In float64: over (features, positions) units are cut, over (positions, features) positions."""
    shape = (3, 6) if axis == 0 else (6, 3)
    given_case = case(Linear(5, axis=axis), shape, batch=4)
    module = torch.nn.Linear(3, 5, dtype=torch.float64)
    module.weight.data, module.bias.data = map(torch.from_numpy, given_case.parameters)
    x, grad = map(torch.from_numpy, (given_case.inputs[0], given_case.error))
    x.requires_grad_()
    expected = module(x.movedim(axis - (axis < 0), -1))
    expected.backward(grad.movedim(axis - (axis < 0), -1))
    found, close = play(given_case, *cuts), {"rtol": 1e-11, "atol": 1e-12}
    np.testing.assert_allclose(found.state, expected.detach().movedim(-1, axis - (axis < 0)), **close)
    np.testing.assert_allclose(found.errors[0], x.grad, **close)
    for gradient, parameter in zip(found.gradients, module.parameters(), strict=True):
        np.testing.assert_allclose(gradient, parameter.grad, **close)


@pytest.mark.parametrize("axis", [1, 2, -2, True, None, "last"])
def test_other_axes_are_refused(axis: object) -> None:
    with pytest.raises(ValueError, match=r"Linear: the axis is .*; write -1 \(the last axis\) or 0"):
        Linear(3, axis=axis)
