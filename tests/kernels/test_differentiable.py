"""Products that `forward` takes by `step.multiply`: those of PyTorch and their gradients, by any library."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

from partita.engine.kernels.products.differentiable import multiplication
from partita.engine.kernels.thread_pool import ThreadPool
from partita.partitioner import Products
from partita.partitioner.cluster.products import RULES, Rule

SHAPES = {
    "one matrix": (256, 64, 64),
    "several": (64, 8, 64, 32),
    "axes": (64, 2, 4, 64, 32),
    "uneven": (65, 9, 63, 31),
    "small": (3, 2, 5, 4),
    "none": (64, 0, 64, 32),
}
"""Rows of the weight, then the shape of what it multiplies."""


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_equals_the_product_of_pytorch_and_its_gradients(rule: Rule, shape: tuple[int, ...]) -> None:
    draw, (rows, *axes) = torch.Generator().manual_seed(3), shape
    weight, x = (
        torch.randn(size, generator=draw, dtype=torch.float64) for size in ((rows, axes[-2]), tuple(axes))
    )
    grad = torch.randn((*axes[:-2], rows, axes[-1]), generator=draw, dtype=torch.float64)
    found, expected = [], []
    with closing(ThreadPool(2)) as pool:
        for results, product in ((found, multiplication(Products(rule), pool)), (expected, torch.matmul)):
            leaves = [tensor.clone().requires_grad_() for tensor in (weight, x)]
            result = product(*leaves)
            results += [result.detach(), *torch.autograd.grad(result, leaves, grad)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("learns", [(True, False), (False, True), (False, False)])
def test_gradients_are_of_what_needs_one(learns: tuple[bool, bool]) -> None:
    with closing(ThreadPool(1)) as pool:
        weight, x = torch.ones(64, 64).requires_grad_(learns[0]), torch.ones(8, 64, 32)
        result = multiplication(Products("tiles"), pool)(weight, x.requires_grad_(learns[1]))
    assert result.requires_grad is any(learns)
    if any(learns):
        result.sum().backward()
    assert [tensor.grad is not None for tensor in (weight, x)] == list(learns)
