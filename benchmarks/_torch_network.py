"""A recipe in PyTorch: the same layers, the same first parameters, the same data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks._recipe import Array, LayerRecipe, Recipe
from benchmarks._torch_blocks import blocks_of
from benchmarks._torch_forms import (
    EinsumLocal,
    ExamplesFirstPool,
    ExamplesLastPool,
    Flatten,
    Local,
    Normalisation,
    RowsLocal,
    ViewLocal,
)
from benchmarks._torch_models import MODELS, model
from benchmarks._torch_sequences import SEQUENCES

LOCAL: Final[Mapping[str, type[Local]]] = {"view": ViewLocal, "rows": RowsLocal, "einsum": EinsumLocal}
"""Forms of unshared filters, by name."""

EXAMPLES_LAST: Final = ("view", "rows")
"""The forms that keep pictures as `[height, width, channel, example]`."""

POOLS: Final = ("AveragePool2D", "L2Pool2D", "MaxPool2D")

ACTIVATIONS: Final = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}


class Translated(nn.Module):
    """Layers, then the loss of the whole batch.

    Args:
        recipe: of the network.
        arrays: the first values of each parameter by name; they become the module's own.
        form: of unshared filters; whatever else it is, examples come first.
    """

    def __init__(self, recipe: Recipe, arrays: Mapping[str, Array], form: str) -> None:
        super().__init__()
        self._last, self._form = form in EXAMPLES_LAST, form
        self._loss, self._classes = recipe.loss, recipe.layers[-1].shape[0]
        self._as_given = recipe.network in MODELS
        if recipe.network in SEQUENCES:
            self.layers: nn.Module = SEQUENCES[recipe.network](arrays)
            return
        if self._as_given:
            self.layers = model(recipe.network)
            return
        if recipe.network == "blocks":
            self.layers = blocks_of(arrays)
            return
        layers: list[nn.Module] = []
        for layer in recipe.layers:
            layers += self._layer(layer, [torch.from_numpy(arrays[name]) for name in layer.parameters])
            if layer.activation in ACTIVATIONS:
                layers.append(ACTIVATIONS[layer.activation]())
        self.layers = nn.Sequential(*layers)

    def _layer(self, layer: LayerRecipe, values: list[Tensor]) -> list[nn.Module]:
        if layer.kind == "Dense":
            return self._dense(layer, *values)
        if layer.kind == "LocallyConnected2D":
            return [LOCAL[self._form](layer, *values)]
        if layer.kind in POOLS:
            return [(ExamplesLastPool if self._last else ExamplesFirstPool)(layer)]
        if layer.kind == "LocalContrastNormalisation2D":
            return [Normalisation(layer, examples_last=self._last)]
        if layer.kind == "Conv2D":
            return [_convolution(layer, *values)]
        raise AssertionError(f"{layer.kind} has no form in PyTorch here")

    def _dense(self, layer: LayerRecipe, weight: Tensor, bias: Tensor) -> list[nn.Module]:
        picture = len(layer.source) == 3
        if picture and not self._last:  # there pictures are flattened channels first
            weight = weight.reshape(-1, *layer.source).permute(0, 3, 1, 2).reshape(weight.shape)
        linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
        linear.weight, linear.bias = nn.Parameter(weight), nn.Parameter(bias)
        if not picture:
            return [linear]
        return [Flatten() if self._last else nn.Flatten(), linear]

    def inputs(self, array: Array) -> Tensor:
        """Examples as the network wants them."""
        found = torch.from_numpy(array)
        if found.ndim == 4 and not self._as_given:
            found = found.permute((1, 2, 3, 0) if self._last else (0, 3, 1, 2))
        return found.contiguous()

    def target(self, labels: Array) -> Tensor:
        """Labels as the loss wants them."""
        found = torch.from_numpy(labels)
        if self._loss == "OneVsRest":
            return functional.one_hot(found, self._classes).float()
        return found

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        scores = self.layers(x)
        if self._loss == "OneVsRest":
            total = functional.binary_cross_entropy_with_logits(scores, target, reduction="sum")
            return total / len(scores)
        assert self._loss == "SoftmaxCrossEntropy"
        return functional.cross_entropy(scores.flatten(0, -2), target.flatten())


def _convolution(layer: LayerRecipe, weight: Tensor, bias: Tensor) -> nn.Conv2d:
    settings = layer.settings
    module = nn.Conv2d(
        layer.source[2],
        layer.shape[2],
        tuple(settings["size"]),
        tuple(settings["stride"]),
        tuple(settings["before"]),
        tuple(settings["dilation"]),
        settings["groups"],
        device="meta",
    )
    module.weight = nn.Parameter(weight.permute(0, 3, 1, 2).contiguous())
    module.bias = nn.Parameter(bias)
    return module
