"""Operations with parameters: products, convolutions, normalisations, tables, recurrent layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from partita.engine.pytorch.conversion import Conversion, operation
from partita.engine.pytorch.nodes import arguments, extents, operation_of
from partita.engine.pytorch.values import Unsupported, Value, placed
from partita.layers import (
    BatchNorm,
    Conv1D,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    Embedding,
    GroupNorm,
    LayerNorm,
    Linear,
    RMSNorm,
)


def given(name: str, argument: Any, order: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """The parameter of a layer that is this argument, unless there is none."""
    return {} if argument is None else {name: (argument, order)}


def _factors(node: fx.Node) -> tuple[Any, Any, tuple[int, int], Any]:
    """Returns the input, the weight, the order of its dimensions, and the bias of a product with a weight."""
    a, name = arguments(node), operation_of(node)
    x, weight = (a["input"], a["weight"]) if name == "linear" else (a["self"], a["other"])
    is_turned = name == "matmul"
    if isinstance(weight, fx.Node) and operation_of(weight) in ("t", "transpose", "permute"):
        weight, is_turned = weight.all_input_nodes[0], not is_turned
    return x, weight, (1, 0) if is_turned else (0, 1), a.get("bias")


def _with_a_weight(node: fx.Node) -> bool:
    """Returns whether one factor of a product is a matrix that is a parameter, and what is added a row of
    it.
    """
    x, weight, _, bias = _factors(node)
    held = isinstance(weight, fx.Node) and weight.op == "placeholder" and len(extents(weight)) == 2
    fits = held and not any(counts for _, counts in extents(weight)) and any(c for _, c in extents(x))
    row = bias is None or (bias.op == "placeholder" and len(extents(bias)) == 1)
    return fits and row


@operation("linear", "matmul", alone=_with_a_weight)
def linear(at: Conversion, node: fx.Node) -> Value:
    """A product along the last dimension: `Dense` where it is the only one, else `Linear`."""
    source, matrix, across, bias = _factors(node)
    x, weight = at.value(source), at.numbers(matrix)[1]
    n = len(x.axes)
    order = [one for one in x.present if one != n - 1]
    states = x.arranged([*order, n - 1])
    found = at.weighted(
        node,
        Linear if order else Dense,
        states,
        given={**given("weight", matrix, across), **given("bias", bias)},
        units=weight.shape[across[0]],
        use_bias=bias is not None,
    )
    return placed(found, [*order, n - 1], n)


@operation("conv1d", "conv2d")
def convolution(at: Conversion, node: fx.Node) -> Value:
    """A convolution over places; one filter for each channel of its own is `DepthwiseConv2D`."""
    a = arguments(node)
    x, (_, weight) = at.value(a["input"]), at.numbers(a["weight"])
    n, places = len(x.axes), weight.dim() - 2
    if n != places + 1:
        raise Unsupported(f"its input has {n} dimensions behind the examples, not {places + 1}")
    padding = a["padding"] if isinstance(a["padding"], str) else tuple((one, one) for one in a["padding"])
    depthwise = places == 2 and a["groups"] == weight.shape[0] // max(weight.shape[0] // a["groups"], 1)
    depthwise = depthwise and weight.shape[1] == 1 and a["groups"] > 1
    settings: dict[str, Any] = {"groups": a["groups"], "filters": weight.shape[0]}
    if depthwise:
        settings = {"depth_multiplier": weight.shape[0] // a["groups"]}
    order = [*range(1, n), 0]
    shape = (0, *range(2, weight.dim()), 1)
    make = DepthwiseConv2D if depthwise else (Conv1D, Conv2D)[places - 1]
    found = at.weighted(
        node,
        make,
        x.arranged(order),
        given={**given("weight", a["weight"], shape), **given("bias", a["bias"])},
        kernel_size=tuple(weight.shape[2:]),
        stride=tuple(a["stride"]),
        padding=padding,
        dilation=tuple(a["dilation"]),
        use_bias=a["bias"] is not None,
        **settings,
    )
    return placed(found, order, n)


@operation("batch_norm")
def batch_norm(at: Conversion, node: fx.Node) -> Value:
    """Normalisation of channels over the examples and the places; in `eval()`, by frozen statistics."""
    a = arguments(node)
    if a["running_mean"] is None or (a["training"] and a["momentum"] is None):
        raise Unsupported("it has no running statistics, or means of all steps; give it a momentum")
    x = at.value(a["input"])
    order = [*(one for one in x.present if one), 0]
    names = {"running_mean": "running_mean", "running_variance": "running_var", "weight": "weight"}
    parameters = {own: (a[name], (0,)) for own, name in names.items() if a[name] is not None}
    found = at.weighted(
        node,
        BatchNorm,
        x.arranged(order),
        given={**parameters, **given("bias", a["bias"])},
        momentum=a["momentum"] if a["training"] else 0.1,
        epsilon=a["eps"],
        scale=a["weight"] is not None,
        frozen_statistics=not a["training"],
    )
    return placed(found, order, len(x.axes))


def _over_the_last(node: fx.Node) -> bool:
    """Returns whether a normalisation is over the last dimension, with a weight and a bias or neither."""
    a = arguments(node)
    return len(a["normalized_shape"]) == 1 and (a["weight"] is None) == (a.get("bias") is None)


@operation("layer_norm", alone=_over_the_last)
def layer_norm(at: Conversion, node: fx.Node) -> Value:
    """Normalisation over the last dimension."""
    a = arguments(node)
    x = at.value(a["input"])
    n = len(x.axes)
    order = [*(one for one in x.present if one != n - 1), n - 1]
    found = at.weighted(
        node,
        LayerNorm,
        x.arranged(order),
        given={**given("weight", a["weight"]), **given("bias", a["bias"])},
        epsilon=a["eps"],
        scale=a["weight"] is not None,
    )
    return placed(found, order, n)


@operation("rms_norm", alone=lambda node: len(arguments(node)["normalized_shape"]) == 1)
def rms_norm(at: Conversion, node: fx.Node) -> Value:
    """Division by the root of the mean square over the last dimension."""
    a = arguments(node)
    x = at.value(a["input"])
    n = len(x.axes)
    order = [*(one for one in x.present if one != n - 1), n - 1]
    epsilon = a["eps"]
    found = at.weighted(
        node,
        RMSNorm,
        x.arranged(order),
        given=given("weight", a["weight"]),
        epsilon=torch.finfo(torch.float32).eps if epsilon is None else epsilon,
        scale=a["weight"] is not None,
    )
    return placed(found, order, n)


@operation("group_norm")
def group_norm(at: Conversion, node: fx.Node) -> Value:
    """Normalisation over groups of channels and all places."""
    a = arguments(node)
    x = at.value(a["input"])
    order = [*range(1, len(x.axes)), 0]
    found = at.weighted(
        node,
        GroupNorm,
        x.arranged(order),
        given={**given("weight", a["weight"]), **given("bias", a["bias"])},
        groups=a["num_groups"],
        epsilon=a["eps"],
        scale=a["weight"] is not None,
    )
    return placed(found, order, len(x.axes))


@operation("embedding")
def embedding(at: Conversion, node: fx.Node) -> Value:
    """A row of a table for each number of a class."""
    a = arguments(node)
    x, (_, table) = at.value(a["indices"]), at.numbers(a["weight"])
    padding = int(a["padding_idx"])
    found = at.weighted(
        node,
        Embedding,
        x.states,
        given=given("weight", a["weight"], (0, 1)),
        classes=len(table),
        units=table.shape[1],
        padding_idx=None if padding < 0 else padding,
    )
    return placed(found, [*x.present, len(x.axes)], len(x.axes) + 1)
