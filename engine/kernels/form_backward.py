"""The backward pass of layers' `forward`: autograd from outputs whose gradients lie in arrays.

A pass begins at a number without a value of its own, whose function hands over the gradient of the output.
So the output itself is not kept where no gradient needs its numbers, and PyTorch does not import SymPy (40
MB) to compare shapes, as it does for gradients that are given. Importing this imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import torch

from partita.engine.kernels import orders

Gradient: TypeAlias = torch.Tensor | None
Root: TypeAlias = torch.Tensor
"""The number at which the backward pass of an output begins."""


def root(output: torch.Tensor, grad: torch.Tensor) -> Root:
    """Returns where the backward pass of an output begins.

    Args:
        output: with a history, or without.
        grad: its gradient, as it is when the backward pass begins; of its shape, contiguous.
    """
    return cast(torch.Tensor, _Root.apply(output, grad))  # type: ignore[no-untyped-call]


def derived(
    roots: Sequence[Root], wanted: Sequence[torch.Tensor], *, retain_graph: bool = False
) -> Sequence[Gradient]:
    """Returns the gradients of these tensors; None where no root depends on one."""
    begins = [one for one in roots if one.requires_grad]
    if not wanted or not begins:
        return (None,) * len(wanted)
    return torch.autograd.grad(begins, wanted, allow_unused=True, retain_graph=retain_graph)


class _Root(torch.autograd.Function):
    """Zero for an output; in the backward pass the output has the gradient that is given."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """Keeps where the gradient lies, and returns a zero."""
        ctx.grad, ctx.dtype, ctx.strides = grad.detach(), output.dtype, output.stride()
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Returns the gradient, in the order in memory that the output had."""
        return orders.like(ctx.grad.to(ctx.dtype), ctx.strides), None


class _WithGradient(torch.autograd.Function):
    """An output as it is; in the backward pass a parameter has a given gradient."""

    @staticmethod
    def forward(
        ctx: Any, output: torch.Tensor, parameter: torch.Tensor, gradient: torch.Tensor
    ) -> torch.Tensor:
        """Keeps the gradient, and returns the output as it is."""
        ctx.save_for_backward(gradient.to(parameter.dtype))
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Returns the output's gradient, and that which was kept."""
        return grad, ctx.saved_tensors[0], None


with_gradient: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] = _WithGradient.apply
"""Returns an output whose backward pass gives a parameter this gradient; see `Step`."""
