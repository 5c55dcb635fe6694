"""The convolution that layers are given, against PyTorch's, where the gradient of its weight is a product."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels.convolution import differentiable
from partita.engine.kernels.convolution.differentiable import convolve
from tests.draws import examples

pairs = st.tuples(st.integers(1, 2), st.integers(1, 2))


@given(
    st.integers(1, 3),
    st.tuples(st.integers(5, 8), st.integers(5, 8)),
    pairs,
    pairs,
    pairs,
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.integers(1, 40),
    st.integers(1, 2),
    st.booleans(),
)
@settings(max_examples=examples(20))
def test_equals_pytorch_s_convolution_with_its_gradients(
    batch: int,
    extent: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    size: tuple[int, int],
    filters: int,
    groups: int,
    biased: bool,
) -> None:
    draw = torch.Generator().manual_seed(filters)
    shapes = [(batch, *extent, 2 * groups), (groups * filters, *size, 2)] + [(groups * filters,)] * biased
    leaves = [torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes]
    picture, weight, *bias = leaves
    given_all = picture.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2), *(bias or (None,))
    found, expected = (
        convolution(*given_all, stride, padding, dilation, groups)  # type: ignore[operator]
        for convolution in (convolve, torch.nn.functional.conv2d)
    )
    assert torch.equal(found, expected)
    grad = torch.randn(found.shape, generator=draw, dtype=torch.float64)
    for one, other in zip(
        torch.autograd.grad(found, leaves, grad), torch.autograd.grad(expected, leaves, grad), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("filters", "by_product"), [(64, True), (36, False)])
def test_a_weight_of_more_filters_than_places_has_its_gradient_by_a_product(
    filters: int, by_product: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[torch.Size] = []
    own = differentiable.of_patches

    def watched(grad: torch.Tensor, *rest: object) -> torch.Tensor:
        calls.append(grad.shape)
        return own(grad, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(differentiable, "of_patches", watched)
    picture, weight = torch.randn(1, 2, 6, 6), torch.randn(filters, 2, 3, 3, requires_grad=True)
    convolve(picture, weight, None, (1, 1), (1, 1), (1, 1), 1).sum().backward()
    assert bool(calls) is by_product
