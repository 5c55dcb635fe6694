"""A network of ours in PyTorch: the same layers, the same first parameters, the same data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks._networks import Array
from benchmarks._torch_forms import (
    EinsumLocal,
    ExamplesFirstPool,
    ExamplesLastPool,
    Flatten,
    Local,
    RowsLocal,
    ViewLocal,
)
from partita.layers import Conv2D, Dense, LocallyConnected2D, SoftmaxCrossEntropy
from partita.layers.graph import Graph, Grid
from partita.layers.pooling import Pool2D
from partita.layers.region import Shape

LOCAL: Final[Mapping[str, type[Local]]] = {"view": ViewLocal, "rows": RowsLocal, "einsum": EinsumLocal}
"""Forms of unshared filters, by name."""

EXAMPLES_LAST: Final = ("view", "rows")
"""The forms that keep pictures as `[height, width, channel, example]`."""

ACTIVATIONS: Final = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}


class Translated(nn.Module):
    """Layers, then the loss of the whole batch.

    Args:
        graph: a chain of layers with one loss.
        initial: the first values of each parameter.
        form: of unshared filters; whatever else it is, examples come first.
    """

    def __init__(self, graph: Graph, initial: Mapping[str, Array], form: str) -> None:
        super().__init__()
        self._last = form in EXAMPLES_LAST
        layers: list[nn.Module] = []
        for grid in (grid for grid in graph.computed if grid.name not in graph.losses):
            values = [torch.from_numpy(initial[parameter.name]) for parameter in grid.parameters]
            layers += self._layer(grid, graph[grid.sources[0]].shape, values, form)
            if grid.layer.activation in ACTIVATIONS:
                layers.append(ACTIVATIONS[grid.layer.activation]())
        self.layers = nn.Sequential(*layers)
        self._kind = type(graph[graph.losses[0]].layer)

    def _layer(self, grid: Grid, source: Shape, values: list[Tensor], form: str) -> list[nn.Module]:
        layer = grid.layer
        if isinstance(layer, Dense):
            return self._dense(source, *values)
        if isinstance(layer, LocallyConnected2D):
            return [LOCAL[form](layer.connectivity, source, *values)]
        if isinstance(layer, Pool2D):
            pool = ExamplesLastPool if self._last else ExamplesFirstPool
            return [pool(layer.kind, layer.connectivity, source)]
        if isinstance(layer, Conv2D):
            return [_convolution(layer, source, *values)]
        raise AssertionError(f"{layer.kind} has no form in PyTorch here")

    def _dense(self, source: Shape, weight: Tensor, bias: Tensor) -> list[nn.Module]:
        if len(source) == 3 and not self._last:  # there pictures are flattened channels first
            weight = weight.reshape(-1, *source).permute(0, 3, 1, 2).reshape(weight.shape)
        linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
        linear.weight, linear.bias = nn.Parameter(weight), nn.Parameter(bias)
        if len(source) == 1:
            return [linear]
        return [Flatten() if self._last else nn.Flatten(), linear]

    def inputs(self, array: Array) -> Tensor:
        """Examples as the network wants them."""
        found = torch.from_numpy(array)
        if found.ndim == 4:
            found = found.permute((1, 2, 3, 0) if self._last else (0, 3, 1, 2))
        return found.contiguous()

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        assert issubclass(self._kind, SoftmaxCrossEntropy)
        return functional.cross_entropy(self.layers(x), target)


def _convolution(layer: Conv2D, source: Shape, weight: Tensor, bias: Tensor) -> nn.Conv2d: ...
