"""Layers that copy, join, take parts and resize: equal to their definitions, and to PyTorch, in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.layers import (
    Average,
    Concatenate,
    Conv1D,
    Crop,
    DepthwiseConv2D,
    Flatten,
    GlobalAveragePool,
    GlobalMaxPool,
    Layer,
    Maximum,
    Multiply,
    Permute,
    Reshape,
    Slice,
    Softmax,
    UpSample,
    ZeroPad,
)
from tests.draws import examples
from tests.kernels.cases import batches, case, cut_points, play, seeds
from tests.properties.kernels import assert_true

F = torch.nn.functional
Rows = tuple[tuple[int, ...], ...]
CASES: list[tuple[Layer, Rows, Callable[..., Any]]] = [
    (Flatten(), ((4, 3, 2),), lambda x: x.flatten(1)),
    (Reshape((3, -1)), ((4, 3, 2),), lambda x: x.reshape(-1, 3, 8)),
    (Reshape((6, 2, 2)), ((4, 6),), lambda x: x.reshape(-1, 6, 2, 2)),
    (Reshape((8,)), ((8,),), lambda x: x),
    (Permute((1, 0)), ((4, 3),), lambda x: x.permute(0, 2, 1)),
    (Permute((2, 0, 1)), ((4, 3, 2),), lambda x: x.permute(0, 3, 1, 2)),
    (Permute((0, 2, 1)), ((4, 3, 2),), lambda x: x.permute(0, 1, 3, 2)),
    (Concatenate(), ((4, 3), (4, 1), (4, 2)), lambda *x: torch.cat(x, -1)),
    (Concatenate(), ((4,), (1,)), lambda *x: torch.cat(x, -1)),
    (Concatenate(0), ((3, 2, 2), (1, 2, 2), (2, 2, 2)), lambda *x: torch.cat(x, 1)),
    (Concatenate(-2), ((3, 2, 2), (3, 1, 2)), lambda *x: torch.cat(x, 2)),
    (Multiply(), ((4, 3), (4, 3), (4, 3)), lambda x, y, z: x * y * z),
    (Maximum(), ((4, 3), (4, 3), (4, 3)), lambda *x: torch.stack(x).amax(0)),
    (Average(), ((4, 3), (4, 3), (4, 3)), lambda *x: torch.stack(x).mean(0)),
    (Slice(1, -1), ((4, 5),), lambda x: x[..., 1:-1]),
    (Slice(1, 7, step=2, axis=0), ((8, 2),), lambda x: x[:, 1:7:2]),
    (Slice(-3, axis=1), ((4, 5, 2),), lambda x: x[:, :, -3:]),
    (ZeroPad(((1, 2), (0, 3))), ((4, 3, 2),), lambda x: F.pad(x, (0, 0, 0, 3, 1, 2))),
    (ZeroPad(2), ((3, 2),), lambda x: F.pad(x, (0, 0, 2, 2))),
    (Crop(((1, 2), (0, 1))), ((6, 3, 2),), lambda x: x[:, 1:-2, :-1]),
    (UpSample(), ((3, 2, 2),), lambda x: x.repeat_interleave(2, 1).repeat_interleave(2, 2)),
    (UpSample(3), ((3, 2),), lambda x: x.repeat_interleave(3, 1)),
    (GlobalAveragePool(), ((4, 3, 5),), lambda x: x.mean((1, 2))),
    (GlobalMaxPool(), ((6, 3),), lambda x: x.amax(1)),
    (Softmax(), ((4, 3),), lambda x: x.softmax(-1)),
    (Softmax(), ((5,),), lambda x: x.softmax(-1)),
]


@given(st.data(), st.sampled_from(CASES), batches, seeds)
@settings(max_examples=examples(60))
def test_equals_its_node_definition(
    data: st.DataObject, one: tuple[Layer, Rows, object], batch: int, seed: int
) -> None:
    given_case = case(one[0], *one[1], batch=batch, seed=seed)
    cuts = data.draw(cut_points(given_case.grid.n_rows))
    assert_true(given_case, play(given_case, *cuts, extra=data.draw(st.integers(0, 2))))


@pytest.mark.parametrize("one", CASES, ids=lambda one: f"{one[0].kind} {one[1]}")
@pytest.mark.parametrize("cuts", [(), (1, 2)])
def test_equals_pytorch(one: tuple[Layer, Rows, Callable[..., Any]], cuts: tuple[int, ...]) -> None:
    """In float64: the output, and the gradient of each input."""
    layer, shapes, function = one
    given_case = case(layer, *shapes, batch=3)
    inputs = [torch.from_numpy(x).movedim(-1, 0).clone().requires_grad_() for x in given_case.inputs]
    expected = function(*inputs)
    expected.backward(torch.from_numpy(given_case.error).movedim(-1, 0))
    found, close = play(given_case, *cuts), {"rtol": 1e-12, "atol": 1e-13}
    np.testing.assert_allclose(found.state, expected.detach().movedim(0, -1), **close)
    for errors, x in zip(found.errors, inputs, strict=True):
        assert x.grad is not None
        np.testing.assert_allclose(errors, x.grad.movedim(0, -1), **close)


CONVOLUTIONS: list[tuple[Any, tuple[int, ...], dict[str, Any]]] = [
    (Conv1D(4, 3), (7, 2), {}),
    (
        Conv1D(4, 2, stride=2, padding=1, dilation=1, groups=2),
        (7, 2),
        {"stride": 2, "padding": 1, "groups": 2},
    ),
    (Conv1D(2, 3, padding="same", dilation=2, use_bias=False), (7, 2), {"padding": 2, "dilation": 2}),
    (DepthwiseConv2D(3, depth_multiplier=2), (5, 4, 3), {"groups": 3}),
    (DepthwiseConv2D((2, 3), stride=2, padding=1), (6, 5, 2), {"groups": 2, "stride": 2, "padding": 1}),
]


@pytest.mark.parametrize("one", CONVOLUTIONS, ids=lambda one: str(one[0]))
@pytest.mark.parametrize("cuts", [(), (1, 2)])
def test_convolutions_equal_pytorch(
    one: tuple[Any, tuple[int, ...], dict[str, Any]], cuts: tuple[int, ...]
) -> None:
    """In float64: the output, the gradients of the input and of the parameters; and the definition."""
    layer, shape, settings = one
    given_case = case(layer, shape, batch=3)
    weight, *bias = (torch.from_numpy(p.copy()).requires_grad_() for p in given_case.parameters)
    x = torch.from_numpy(given_case.inputs[0]).movedim(-1, 0).clone().requires_grad_()
    convolve = F.conv1d if len(shape) == 2 else F.conv2d
    expected = convolve(x.movedim(-1, 1), weight.movedim(-1, 1), *bias, **settings).movedim(1, -1)
    expected.backward(torch.from_numpy(given_case.error).movedim(-1, 0))
    found, close = play(given_case, *cuts), {"rtol": 1e-11, "atol": 1e-12}
    np.testing.assert_allclose(found.state, expected.detach().movedim(0, -1), **close)
    np.testing.assert_allclose(found.errors[0], x.grad.movedim(0, -1), **close)  # type: ignore[union-attr]
    for gradient, parameter in zip(found.gradients, (weight, *bias), strict=True):
        np.testing.assert_allclose(gradient, parameter.grad, **close)  # type: ignore[arg-type]
    assert_true(given_case, found)


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (lambda: Reshape((4, -1, -1)), "Reshape: the target shape is .*of which one may be -1"),
        (lambda: case(Reshape((5, 2)), (4, 3), batch=1), "12 nodes, which have no shape"),
        (lambda: Permute((1, 2)), r"Permute: the axes are \(1, 2\); name each axis once, from 0"),
        (lambda: case(Permute((1, 0)), (4, 3, 2), batch=1), "name each of its 3 axes once"),
        (lambda: case(Concatenate(0), (4, 3), (4, 2), batch=1), "equal but for axis 0"),
        (lambda: case(Concatenate(2), (4, 3), (4, 3), batch=1), "the axis is 2, but the input has"),
        (lambda: case(Slice(3, 3), (4, 5), batch=1), "write a start below the stop"),
        (lambda: Slice(step=0), "the step is 0; write a whole number of at least 1"),
        (lambda: case(Crop(2), (4, 4, 1), batch=1), "nothing is left of an input .*; crop less"),
        (lambda: ZeroPad(-1), "the padding is"),
        (lambda: UpSample(0), "the size is"),
        (lambda: case(GlobalAveragePool(), (4,), batch=1), "needs places and a last axis of channels"),
        (lambda: case(Conv1D(2, 3), (4, 4, 1), batch=1), "a sequence is"),
        (lambda: case(DepthwiseConv2D(3), (4, 4), batch=1), "a picture is"),
        (lambda: DepthwiseConv2D(3, depth_multiplier=0), "the depth multiplier is 0"),
    ],
)
def test_misuse_is_refused_with_the_next_step(declare: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        declare()
