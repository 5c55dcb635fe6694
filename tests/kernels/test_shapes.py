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
    Concatenate,
    Crop,
    Flatten,
    Layer,
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
    (Slice(1, -1), ((4, 5),), lambda x: x[..., 1:-1]),
    (Slice(1, 7, step=2, axis=0), ((8, 2),), lambda x: x[:, 1:7:2]),
    (Slice(-3, axis=1), ((4, 5, 2),), lambda x: x[:, :, -3:]),
    (ZeroPad(((1, 2), (0, 3))), ((4, 3, 2),), lambda x: F.pad(x, (0, 0, 0, 3, 1, 2))),
    (ZeroPad(2), ((3, 2),), lambda x: F.pad(x, (0, 0, 2, 2))),
    (Crop(((1, 2), (0, 1))), ((6, 3, 2),), lambda x: x[:, 1:-2, :-1]),
    (UpSample(), ((3, 2, 2),), lambda x: x.repeat_interleave(2, 1).repeat_interleave(2, 2)),
    (UpSample(3), ((3, 2),), lambda x: x.repeat_interleave(3, 1)),
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
