"""The fastest calls of PyTorch that are known for a layer, over arrays `[node axes ..., example]`.

Calls take and return the layout of this engine: where PyTorch wants examples first or channels last, a call
transposes the array, or takes a view where that is enough. Gradients are those of autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks._recipe import LayerRecipe
from benchmarks._torch_forms import Rows, RowsLocal, band
from partita.engine.kernels import Arrays, Call, KernelContext, ThreadPool, build
from partita.engine.kernels.calls import sequence
from partita.engine.kernels.kernel import Kernel
from partita.engine.kernels.tensors import array_of, on_host
from partita.layers import Activation, LocalContrastNormalisation2D, Patch

Form = Callable[..., Tensor]
"""The output, from the layer, its inputs and its parameters."""


def best_call(context: KernelContext, arrays: Arrays) -> Call:
    """Forward and all gradients of a layer by PyTorch."""
    layer = context.grid.layer
    form = FORMS.get(layer.kind)
    if form is None:
        return by_layer(context, arrays)
    tensors = [on_host(one) for one in (*arrays.inputs, *arrays.parameters)]
    shape = arrays.output.shape
    grad = torch.full(shape, 1 / context.batch) if arrays.grad_output is None else on_host(arrays.grad_output)

    def call() -> None:
        given = [one.detach().requires_grad_(one.is_floating_point()) for one in tensors]
        output = form(context, *given)
        learning = [one for one in given if one.requires_grad]
        torch.autograd.grad(output, learning, grad.reshape(output.shape), allow_unused=True)

    return call


def by_layer(context: KernelContext, arrays: Arrays) -> Call:
    """The same by the layer's own `forward`."""

    def tensor(array: Any, *, own: bool = False) -> Any:
        return None if array is None else array_of(on_host(array.copy() if own else array))

    there = Arrays(
        inputs=tuple(map(tensor, arrays.inputs)),
        output=tensor(arrays.output, own=True),
        grad_output=tensor(arrays.grad_output, own=True),
        grad_inputs=tuple(tensor(array, own=True) for array in arrays.grad_inputs),
        parameters=tuple(map(tensor, arrays.parameters)),
    )
    kernel: Kernel = build(replace(context, device="torch"), there, ThreadPool(1))
    inputs = range(len(arrays.inputs))
    windows = context.grad_windows
    return sequence(
        kernel.forward(), *(kernel.backward_input(n, (windows[n],), accumulate=False) for n in inputs)
    )


def dense(context: KernelContext, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One product with the bias."""
    sums = torch.addmm(bias[:, None], weight, x.flatten(0, -2))
    return activated(context, sums)


def local(context: KernelContext, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A row of places at a time, with a backward pass of its own: `RowsLocal` of `single_part`."""
    form = RowsLocal(recipe(context), weight.detach(), bias.detach())
    flat = weight.reshape(form.weight.shape), bias.reshape(form.bias.shape)
    sums: Tensor = Rows.apply(x, *flat, form)  # type: ignore[no-untyped-call]
    return activated(context, sums.view(*context.grid.shape, -1))


def pool(context: KernelContext, x: Tensor) -> Tensor:
    """One picture whose channels are those of all examples, which is a view."""
    y, x_axis = patch(context).axes(context.sources[0].shape)
    size, stride, before = (y.size, x_axis.size), (y.stride, x_axis.stride), (y.before, x_axis.before)
    picture = x.flatten(2)[None].permute(0, 3, 1, 2)
    kind = context.grid.layer.kind
    if kind == "MaxPool2D":
        found = functional.max_pool2d(picture, size, stride, before)
    elif kind == "AveragePool2D":
        found = functional.avg_pool2d(picture, size, stride, before)
    else:  # faster than `lp_pool2d`, which raises every number to a power
        area = size[0] * size[1]
        found = (functional.avg_pool2d(picture * picture, size, stride, before) * area).sqrt()
    return found.permute(0, 2, 3, 1).reshape(*context.grid.shape, -1)


def normalisation(context: KernelContext, x: Tensor) -> Tensor:
    """Windows as two products with banded matrices, in float64: the variance is a difference of sums."""
    layer = context.grid.layer
    assert isinstance(layer, LocalContrastNormalisation2D)
    rows, columns = (
        band(one, n).double() for one, n in zip(layer.windows, context.grid.shape[:2], strict=True)
    )

    def window(places: Tensor) -> Tensor:
        return (columns @ (rows @ places.flatten(1)).view(places.shape)).unsqueeze(2)

    wide = x.double()
    mean, square = window(wide.mean(2)), window((wide * wide).mean(2))
    return ((wide - mean) * torch.rsqrt((square - mean * mean).clamp(min=layer.floor**2))).to(x.dtype)


def batch_norm(context: KernelContext, x: Tensor, mean: Tensor, variance: Tensor, *learnt: Tensor) -> Tensor:
    """Places are PyTorch's examples and examples its places, which is a view; running statistics change."""
    running = mean.detach(), variance.detach()
    found = functional.batch_norm(x.flatten(0, -3), *running, *learnt, training=context.training)
    return found.view(x.shape)


def activation(context: KernelContext, x: Tensor) -> Tensor:
    """Applies the function of the layer."""
    layer = context.grid.layer
    assert isinstance(layer, Activation)
    return FUNCTIONS[layer.function](x)


def cross_entropy(context: KernelContext, scores: Tensor, labels: Tensor) -> Tensor:
    """Classes are the second axis, of positions or of one of these: nothing is turned."""
    positions = scores if scores.dim() == 3 else scores[None]
    return functional.cross_entropy(positions, labels, reduction="none")


FUNCTIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "linear": lambda x: x,
    "relu": functional.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "silu": functional.silu,
}

FORMS: Final[Mapping[str, Form]] = {
    "Activation": activation,
    "AveragePool2D": pool,
    "BatchNorm": batch_norm,
    "Dense": dense,
    "L2Pool2D": pool,
    "LocalContrastNormalisation2D": normalisation,
    "LocallyConnected2D": local,
    "MaxPool2D": pool,
    "SoftmaxCrossEntropy": cross_entropy,
}


def activated(context: KernelContext, sums: Tensor) -> Tensor:
    """The layer's activation of its sums."""
    return FUNCTIONS[context.grid.layer.activation](sums)


def patch(context: KernelContext) -> Patch:
    """The patches of the layer."""
    found = context.grid.connectivity
    assert isinstance(found, Patch)
    return found


def recipe(context: KernelContext) -> LayerRecipe:
    """The layer as the players of `single_part` are given it."""
    grid, source = context.grid, context.sources[0].shape
    axes = patch(context).axes(source)
    settings = {name: tuple(getattr(axis, name) for axis in axes) for name in ("size", "stride", "before")}
    return LayerRecipe(grid.layer.kind, source, grid.shape, grid.layer.activation, (), settings)
