"""Products of tensors by the library that the plan determines, with their gradients. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import torch

from partita.engine.kernels.kernel import Array
from partita.engine.kernels.products.product import product_by, shape_of
from partita.engine.kernels.thread_pool import ThreadPool
from partita.partitioner.cluster.products import LARGE, Products

Multiply: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def multiplication(choices: Products, pool: ThreadPool) -> Multiply:
    """Makes the function `multiply(weight, x)`: the product of `weight` `[m, k]` and each matrix `[k, n]` in
    the last two axes of `x`.

    PyTorch computes small products, those of a device and those in bfloat16. The others are one product
    of matrices, whose columns are all of `x`; so are its gradients.
    """
    own, apply = _Own(choices, pool), cast(Callable[..., object], _Product.apply)

    def multiply(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        operations = 2.0 * weight.shape[0] * x.numel()
        if operations < LARGE or x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
            return _unfolded(torch.mm(weight, _folded(x)), x.shape)
        return cast(torch.Tensor, apply(weight, x, own))

    return multiply


class _Own:
    """Products of two matrices of tensors, by the plan's libraries."""

    def __init__(self, choices: Products, pool: ThreadPool) -> None:
        self._choices, self._pool = choices, pool

    def __call__(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The product of `[m, k]` and `[k, n]`."""
        left, right = _in_lines(a), _in_lines(b)
        choice = self._choices.choose(shape_of(left, right, self._pool.threads))
        if choice.library == "torch":
            return torch.mm(a, b)
        out = a.new_empty(len(a), b.shape[1])
        product_by(choice, left, right, out.numpy(), pool=self._pool)()
        return out


class _Product(torch.autograd.Function):
    """The product of a matrix and the matrices in the last two axes of a tensor."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, x: torch.Tensor, own: _Own) -> torch.Tensor:
        """One product; its columns are those of all matrices."""
        folded = _folded(x)
        ctx.save_for_backward(weight, folded)
        ctx.own, ctx.shape = own, x.shape
        return _unfolded(own(weight, folded), x.shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        """The products with the transposed factors."""
        (weight, folded), own, grads = ctx.saved_tensors, ctx.own, _folded(grad)
        of_weight = own(grads, folded.T) if ctx.needs_input_grad[0] else None
        of_x = _unfolded(own(weight.T, grads), ctx.shape) if ctx.needs_input_grad[1] else None
        return of_weight, of_x, None


def _folded(x: torch.Tensor) -> torch.Tensor:
    """The matrices in the last two axes side by side, `[k, other axes and columns]`."""
    return x.movedim(-2, 0).reshape(x.shape[-2], -1)


def _unfolded(matrix: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """A view of what `_folded` made of such a shape, but for the number of rows."""
    return matrix.view(len(matrix), *shape[:-2], shape[-1]).movedim(0, -2)


def _in_lines(matrix: torch.Tensor) -> Array:
    """The array of a matrix, whose rows or columns are contiguous; the same memory where they are."""
    found: Array = (matrix if 1 in matrix.stride() else matrix.contiguous()).detach().numpy()
    return found
