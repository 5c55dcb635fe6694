"""The layers of a network as PyTorch modules.

A network of pictures has two layouts here. Examples first is PyTorch's own, `[example, channel, height,
width]`. Examples last, `[height, width, channel, example]`, suits unshared filters: each place is then a
product of a matrix of weights and a matrix of inputs, with no turn between layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks._recipe import LayerRecipe


class Flatten(nn.Module):
    """`[..., example]` to `[example, node]`."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1, x.shape[-1]).t()


class ExamplesFirstPool(nn.Module):
    """Pooling of `[example, channel, height, width]`."""

    def __init__(self, layer: LayerRecipe) -> None:
        super().__init__()
        self._kind = layer.kind
        self._size, self._stride = tuple(layer.settings["size"]), tuple(layer.settings["stride"])

    def forward(self, x: Tensor) -> Tensor:
        if self._kind == "MaxPool2D":
            largest: Tensor = functional.max_pool2d(x, self._size, self._stride)
            return largest
        if self._kind == "AveragePool2D":
            mean: Tensor = functional.avg_pool2d(x, self._size, self._stride)
            return mean
        # Faster than functional.lp_pool2d, which raises every number to a power.
        area = self._size[0] * self._size[1]
        norm: Tensor = (functional.avg_pool2d(x * x, self._size, self._stride) * area).sqrt()
        return norm


class ExamplesLastPool(ExamplesFirstPool):
    """Pooling of `[height, width, channel, example]`, as one picture of so many channels and examples."""

    def forward(self, x: Tensor) -> Tensor:
        height, width, channels, batch = x.shape
        picture = x.reshape(1, height, width, channels * batch).permute(0, 3, 1, 2)
        pooled = super().forward(picture).permute(0, 2, 3, 1)
        return pooled.reshape(*pooled.shape[1:3], channels, batch)


class Normalisation(nn.Module):
    """Local contrast normalisation. A window is a matrix of weights from each row (column) to each, because
    two small products are faster than a convolution with one channel.
    """

    def __init__(self, layer: LayerRecipe, *, examples_last: bool) -> None:
        super().__init__()
        self._last, self._floor = examples_last, layer.settings["floor"]
        self.rows, self.columns = (
            nn.Buffer(band(weights, extent))
            for weights, extent in zip(layer.settings["windows"], layer.source[:2], strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        channels = 2 if self._last else 1
        mean = self._window(x.mean(channels)).unsqueeze(channels)
        square = self._window((x * x).mean(channels)).unsqueeze(channels)
        deviation = (square - mean * mean).clamp(min=self._floor**2).sqrt()
        return (x - mean) / deviation

    def _window(self, places: Tensor) -> Tensor:
        """Window sums of `[row, column, example]` or `[example, row, column]`."""
        if not self._last:
            return self.rows @ places @ self.columns.t()
        down = self.rows @ places.view(len(places), -1)
        return self.columns @ down.view(places.shape)


def band(weights: Sequence[float], extent: int) -> Tensor:
    """`[to, from]`: how much a place weighs in the window around another."""
    band = torch.zeros(extent, extent)
    for offset, weight in enumerate(weights, -(len(weights) // 2)):
        band.diagonal(offset).fill_(weight)
    return band


class Local(nn.Module):
    """Unshared filters; `weight` is `[row, column, filter, patch row, patch column, channel]`."""

    def __init__(self, layer: LayerRecipe, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        assert not any(layer.settings["before"]), "patches on a padding have no form here"
        self.size, self.stride = tuple(layer.settings["size"]), tuple(layer.settings["stride"])
        self.rows, self.columns, self.filters = layer.shape
        self.lay_out(weight.reshape(*layer.shape, *self.size, layer.source[2]), bias)

    def lay_out(self, weight: Tensor, bias: Tensor) -> None:
        """Lays weights out for products of `[filter, input]` and `[input, example]`."""
        places = self.rows * self.columns
        self.weight = nn.Parameter(weight.reshape(places, self.filters, -1))
        self.bias = nn.Parameter(bias.reshape(places, self.filters, 1))


class ViewLocal(Local):
    """A strided view of all patches, one batched product. Unfolding twice gives the view of `as_strided`, but
    a backward pass that takes a third less of the time.
    """

    def forward(self, x: Tensor) -> Tensor:
        patches = x.unfold(0, self.size[0], self.stride[0]).unfold(1, self.size[1], self.stride[1])
        inputs = patches.permute(0, 1, 4, 5, 2, 3).reshape(self.rows * self.columns, -1, x.shape[-1])
        sums = torch.baddbmm(self.bias, self.weight, inputs)
        return sums.view(self.rows, self.columns, self.filters, -1)


class EinsumLocal(Local):
    """`unfold` and `einsum`, as it is usually written; examples first."""

    def lay_out(self, weight: Tensor, bias: Tensor) -> None:
        """Lays weights out for the result of `unfold`: channels before the places of a patch."""
        places = self.rows * self.columns
        self.weight = nn.Parameter(weight.permute(0, 1, 2, 5, 3, 4).reshape(places, self.filters, -1))
        self.bias = nn.Parameter(bias.reshape(places, self.filters).t().contiguous())

    def forward(self, x: Tensor) -> Tensor:
        inputs = functional.unfold(x, self.size, stride=self.stride)
        sums = torch.einsum("bkp,pfk->bfp", inputs, self.weight) + self.bias
        return sums.view(-1, self.filters, self.rows, self.columns)


class RowsLocal(Local):
    """A row of places at a time, so that a copy of its patches stays in the cache; its own backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        sums: Tensor = Rows.apply(x, self.weight, self.bias, self)  # type: ignore[no-untyped-call]
        return sums.view(self.rows, self.columns, self.filters, -1)

    def inputs(self, x: Tensor, row: int) -> Tensor:
        """The patches of a row, `[column, input, example]`."""
        top = row * self.stride[0]
        patches = x[top : top + self.size[0]].unfold(1, self.size[1], self.stride[1])
        return patches.permute(1, 0, 4, 2, 3).reshape(self.columns, -1, x.shape[-1])

    def places(self, row: int) -> slice:
        """Slice of the places of a row."""
        return slice(row * self.columns, (row + 1) * self.columns)


class Rows(torch.autograd.Function):
    """The sums of `RowsLocal`, and their gradients."""

    @staticmethod
    def forward(ctx, x, weight, bias, local):  # type: ignore[no-untyped-def]
        sums = x.new_empty(len(weight), local.filters, x.shape[-1])
        for row in range(local.rows):
            at = local.places(row)
            torch.baddbmm(bias[at], weight[at], local.inputs(x, row), out=sums[at])
        ctx.save_for_backward(x, weight)
        ctx.local = local
        return sums

    @staticmethod
    def backward(ctx, delta):  # type: ignore[no-untyped-def]
        local, (x, weight) = ctx.local, ctx.saved_tensors
        (height, width), (down, right) = local.size, local.stride
        gradient = torch.empty_like(weight)
        errors = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        for row in range(local.rows):
            at = local.places(row)
            torch.bmm(delta[at], local.inputs(x, row).transpose(1, 2), out=gradient[at])
            if errors is None:
                continue
            patches = torch.bmm(weight[at].transpose(1, 2), delta[at])
            patches = patches.view(local.columns, height, width, *x.shape[2:]).transpose(0, 1)
            reached = errors[row * down : row * down + height]
            for column in range(width):
                reached[:, column : column + local.columns * right : right] += patches[:, :, column]
        return errors, gradient, delta.sum(2, keepdim=True), None
