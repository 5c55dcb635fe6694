"""Checks of the order and the number of axes: what layers read, and what shape they return."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import partita.layers
from partita.layers import (
    Activation,
    Add,
    Average,
    Concatenate,
    Crop,
    Dense,
    DepthwiseConv2D,
    Dropout,
    Flatten,
    GlobalAveragePool,
    GlobalMaxPool,
    Layer,
    LayerNorm,
    Linear,
    Maximum,
    MaxPool2D,
    Permute,
    Reshape,
    Slice,
    Softmax,
    UpSample,
    ZeroPad,
)
from tests.kernels.cases import Case, case, play
from tests.truth.differences.rows import agree, row

loosely: Any = partita.layers


def shape_of(layer: Layer, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The grid of a layer over inputs of these shapes."""
    return case(layer, *shapes, batch=1).grid.shape


def batch_first(given_case: Case) -> torch.Tensor:
    """The input of a case as PyTorch has it, [example, ...]."""
    return torch.from_numpy(np.moveaxis(given_case.inputs[0], -1, 0).copy())


@row("`Dense` over an input of several axes")
def _() -> bool:
    theirs = tuple(torch.nn.Linear(4, 3)(torch.zeros(2, 5, 4)).shape[1:])
    assert theirs == shape_of(Linear(3), (5, 4))
    return shape_of(Dense(3), (5, 4)) == theirs


@row("`gelu`, `silu`, `leaky_relu`, `elu`, `softplus` of `Activation`")
def _() -> bool:
    nn, found = torch.nn, []
    pairs: list[tuple[str, Any]] = [("gelu", nn.GELU), ("silu", nn.SiLU), ("leaky_relu", nn.LeakyReLU)]
    for name, module in (*pairs, ("elu", nn.ELU), ("softplus", nn.Softplus)):
        given_case = case(Activation(name), (50,), batch=2)
        given_case.inputs[0][...] *= 10
        expected = module()(batch_first(given_case)).numpy().T
        found.append(np.allclose(play(given_case).state, expected, rtol=1e-8, atol=1e-8))
    return all(found)


@row("rate of `Dropout` by default")
def _() -> bool:
    torch.manual_seed(0)
    kept = torch.nn.Dropout()(torch.ones(100)).unique().tolist()
    assert kept == [0.0, 2.0]
    return Dropout().rate == torch.nn.Dropout().p


@row("gradient of `Maximum` on a tie")
def _() -> bool:
    x, y = (torch.ones(1, requires_grad=True) for _ in range(2))
    torch.maximum(x, y).sum().backward()
    given_case = case(Maximum(), (1,), (1,), batch=1)
    for given in (*given_case.inputs, given_case.error):
        given[...] = 1
    assert x.grad is not None and y.grad is not None
    found = [float(error.reshape(-1)[0]) for error in play(given_case).errors]
    assert found == [1, 0]
    return found == [float(x.grad[0]), float(y.grad[0])]


@row("gradient of `MaxPool2D` and `GlobalMaxPool` on a tie")
def _() -> bool:
    x = torch.ones(1, 1, 2, 2, requires_grad=True)
    torch.nn.MaxPool2d(2)(x).sum().backward()
    y = torch.ones(1, 1, 2, 2, requires_grad=True)
    torch.nn.AdaptiveMaxPool2d(1)(y).sum().backward()
    found = []
    for layer, theirs in ((MaxPool2D(2), x), (GlobalMaxPool(), y)):
        given_case = case(layer, (2, 2, 1), batch=1)
        given_case.inputs[0][...] = given_case.error[...] = 1
        assert theirs.grad is not None
        found.append((play(given_case).errors[0][..., 0, 0] == theirs.grad[0, 0].numpy()).all())
    return all(found)


@row("result of `GlobalAveragePool` and `GlobalMaxPool`")
def _() -> bool:
    theirs = torch.nn.AdaptiveAvgPool2d(1)(torch.zeros(1, 3, 4, 5)).shape[1:]
    assert tuple(theirs) == (3, 1, 1)
    return shape_of(GlobalAveragePool(), (4, 5, 3)) == shape_of(GlobalMaxPool(), (4, 5, 3)) == tuple(theirs)


@row("axes of `LayerNorm`")
def _() -> bool:
    given_case = case(LayerNorm(scale=False), (5, 4), batch=2)
    x, ours = batch_first(given_case), torch.from_numpy(np.moveaxis(play(given_case).state, -1, 0).copy())
    torch.testing.assert_close(ours, torch.nn.LayerNorm(4, elementwise_affine=False)(x))
    with pytest.raises(TypeError, match="it is the last axis"):
        loosely.LayerNorm(normalized_shape=(5, 4))
    return torch.allclose(ours, torch.nn.LayerNorm((5, 4), elementwise_affine=False)(x))


@row("unequal shapes of the inputs of `Add`, `Average`, `Maximum` and `Multiply`")
def _() -> bool:
    assert (torch.zeros(2, 4, 3) + torch.zeros(2, 1, 3)).shape == (2, 4, 3)
    for kind in (Add, Average, Maximum, loosely.Multiply):
        with pytest.raises(ValueError, match="give it two or more of the same shape"):
            shape_of(kind(), (4, 3), (1, 3))
    return False


@row("order of the axes of `Conv1D` and `Conv2D`")
def _() -> bool:
    theirs = tuple(torch.nn.Conv1d(4, 3, 2)(torch.zeros(1, 4, 6)).shape[1:])
    assert theirs == (3, 5) and shape_of(loosely.Conv2D(3, 2), (6, 7, 4)) == (5, 6, 3)
    return shape_of(loosely.Conv1D(3, 2), (6, 4)) == theirs


@row("order of the filters of `DepthwiseConv2D`")
def _() -> bool:
    given_case = case(DepthwiseConv2D(3, depth_multiplier=2, use_bias=False), (5, 5, 2), batch=2)
    theirs = torch.nn.Conv2d(2, 4, 3, groups=2, bias=False).double()
    theirs.weight = torch.nn.Parameter(torch.from_numpy(given_case.parameters[0]).permute(0, 3, 1, 2))
    return agree(given_case, theirs)


@row("order of `Flatten`")
def _() -> bool:
    given_case = case(Flatten(), (2, 2, 3), batch=2)
    ours, x = play(given_case).state, given_case.inputs[0]
    np.testing.assert_array_equal(ours, x.reshape(-1, 2))
    theirs = torch.nn.Flatten()(torch.from_numpy(x.transpose(3, 2, 0, 1).copy())).numpy().T
    return bool((ours == theirs).all())


@row("axes of `Permute`, `Reshape`, `Slice` and `Concatenate`")
def _() -> bool:
    given_case = case(Permute((1, 0)), (2, 3), batch=4)
    theirs = batch_first(given_case).permute(0, 2, 1)
    np.testing.assert_array_equal(np.moveaxis(play(given_case).state, -1, 0), theirs)
    ours = shape_of(Reshape((3, 2)), (2, 3)), shape_of(Slice(1, axis=0), (2, 3))
    assert ours == ((3, 2), (1, 3)) and shape_of(Concatenate(0), (2, 3), (4, 3)) == (6, 3)
    return tuple(batch_first(given_case).permute(1, 0, 2).shape) == (4, 3, 2)


@row("axis of `Concatenate` by default")
def _() -> bool:
    assert shape_of(Concatenate(), (2, 3), (2, 4)) == (2, 7)
    return torch.cat([torch.zeros(1, 2, 3), torch.zeros(1, 2, 3)]).shape[1:] == (2, 6)


@row("axis of `Softmax`")
def _() -> bool:
    given_case = case(Softmax(), (2, 3), batch=2)
    expected = batch_first(given_case).softmax(-1).numpy()
    np.testing.assert_allclose(np.moveaxis(play(given_case).state, -1, 0), expected, rtol=1e-12)
    return torch.nn.Softmax().dim == -1


@row("order of the margins of `ZeroPad` and `Crop`")
def _() -> bool:
    theirs = tuple(torch.nn.ZeroPad2d((1, 2, 0, 0))(torch.zeros(1, 1, 6, 6)).shape[2:])
    ours = shape_of(ZeroPad(((1, 2), (0, 0))), (6, 6, 1))[:2]
    assert ours == (9, 6) and shape_of(Crop(((1, 2), (0, 0))), (6, 6, 1))[:2] == (3, 6)
    return ours == theirs


@row("`UpSample`")
def _() -> bool:
    return agree(case(UpSample(2), (2, 3, 1), batch=2), torch.nn.Upsample(scale_factor=2))


@row("`LocallyConnected2D` and `LocalContrastNormalisation2D`")
def _() -> bool:
    assert loosely.LocallyConnected2D and loosely.LocalContrastNormalisation2D
    return hasattr(torch.nn, "LocallyConnected2d") and hasattr(torch.nn, "LocalContrastNorm")
