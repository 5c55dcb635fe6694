"""A convolution of pictures with its gradients, in torch: that of a large weight is a product of matrices.

oneDNN lays a weight and its gradient out in blocks. For few places that takes longer than the products
themselves: the gradient of 512 filters of 3 x 3 x 512 numbers at 128 places takes 26 ms, and 7 ms as a
product (one core of an AMD Zen 4, float32). Importing this imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch.nn import functional

_Gradient: TypeAlias = torch.Tensor | None


class Settings(NamedTuple):
    """Settings of a convolution of pictures, one for each axis, but for `groups`."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int


def convolve(
    picture: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """Returns the convolution, as `torch.nn.functional.conv2d` does.

    Args:
        picture: `[example, channel, row, column]`.
        weight: `[filter, channel of a group, row, column]`.
        bias: `[filter]`, or None.
        stride: of rows and columns.
        padding: rows and columns of zeros on each side.
        dilation: of rows and columns.
        groups: of filters and channels.
    """
    settings = Settings(stride, padding, dilation, groups)
    if groups > 1 or picture.device.type != "cpu" or not weight.requires_grad:
        return functional.conv2d(picture, weight, bias, *settings)
    return cast(torch.Tensor, _Convolution.apply(picture, weight, bias, settings))  # type: ignore[no-untyped-call]


class _Convolution(torch.autograd.Function):
    """A convolution without groups; PyTorch's, but for the gradient of the weight."""

    @staticmethod
    def forward(
        ctx: Any, picture: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, settings: Settings
    ) -> torch.Tensor:
        """Returns `conv2d`, and keeps picture and weight for its gradients."""
        ctx.save_for_backward(picture, weight)
        ctx.settings = settings
        return functional.conv2d(picture, weight, bias, *settings)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[_Gradient, _Gradient, _Gradient, None]:
        """The gradients of picture, weight and bias."""
        (picture, weight), (*settings, groups) = ctx.saved_tensors, ctx.settings
        of_picture, of_weight, of_bias, _ = ctx.needs_input_grad
        by_product = of_weight and is_product(grad)
        wanted = [of_picture, of_weight and not by_product, of_bias]
        given = grad, picture, weight, [len(weight)], *settings, False, [0, 0], groups
        found: list[_Gradient] = list(torch.ops.aten.convolution_backward(*given, wanted))
        if by_product:
            found[1] = of_patches(grad, patches_of(picture, weight.shape, ctx.settings), weight.shape)
        return found[0], found[1], found[2], None


def is_product(grad: torch.Tensor) -> bool:
    """Returns whether the gradient of the weight is a product: for fewer places than filters.

    Args:
        grad: of the convolution's result, `[example, filter, row, column]`.
    """
    return grad.numel() < grad.shape[1] ** 2


def patches_of(picture: torch.Tensor, shape: torch.Size, settings: Settings) -> torch.Tensor:
    """Returns the patch of each place of each example, `[place, number]`, for a weight of this shape."""
    rows, columns = settings.padding
    patches = functional.pad(picture.permute(0, 2, 3, 1), (0, 0, columns, columns, rows, rows))
    for axis, (size, stride, dilation) in enumerate(
        zip(shape[2:], settings.stride, settings.dilation, strict=True), 1
    ):
        reach = (size - 1) * dilation + 1
        patches = patches.unfold(axis, reach, stride)[..., ::dilation]
    return patches.permute(0, 1, 2, 4, 5, 3).reshape(-1, shape[1:].numel())


def of_patches(grad: torch.Tensor, patches: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Returns the gradient of a weight of this shape: the products of the gradient and the patches, summed
    over places and examples; in channels last.
    """
    products = grad.permute(1, 0, 2, 3).flatten(1) @ patches
    return products.view(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2)
