"""The networks that are timed, their data, and what a training step of them costs at least.

Parameters and data follow from a seed alone, so every process makes the same ones by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks._blocks import blocks
from benchmarks._recipe import Array, LayerRecipe, Recipe
from partita.engine.parameters import initialise
from partita.layers import (
    LSTM,
    Activation,
    Add,
    Conv2D,
    Dense,
    Embedding,
    Graph,
    Grid,
    L2Pool2D,
    LayerNorm,
    Linear,
    LocalContrastNormalisation2D,
    LocallyConnected2D,
    MaxPool2D,
    MultiHeadAttention,
    Network,
    OneVsRest,
    Patch,
    PositionEmbedding,
    SoftmaxCrossEntropy,
    SymbolicTensor,
)
from partita.layers.layer import Placeholder

SEED: Final = 0
"""Seed of the parameters."""


@dataclass(frozen=True)
class Work:
    """A network to train.

    Args:
        network: declares it.
        rate: of SGD.
    """

    network: Callable[[], Network]
    rate: float


def speech() -> Network:
    """The 42M speech network (DistBelief, section 5): 440 -> 4 x 2560 sigmoid -> softmax over 8192."""
    net = Network("speech")
    states = net.input("frames", shape=440)
    for number in range(1, 5):
        states = Dense(2560, activation="sigmoid", name=f"hidden{number}")(states)
    return _classified(net, Dense(8192, name="scores")(states))


def first() -> Network:
    """The first layer of the paper's image network, with a pooling and 1,000 outputs over it."""
    net = Network("first")
    picture = net.input("picture", shape=(100, 100, 3))
    filters = LocallyConnected2D(8, kernel_size=10, stride=2, name="filters")(picture)
    return _classified(net, Dense(1000, name="scores")(L2Pool2D(5)(filters)))


def image() -> Network:
    """The three-stage image network (DistBelief, section 5), 97,529,336 parameters.

    The paper gives patches of 10 x 10, 8 filters on each, pooling, local contrast normalisation and 21,000
    outputs. Strides, pools and windows are not in its text: here all strides are 1 but that of the last
    pooling, whose patches divide its picture into 6 x 6.
    """
    return three_stages("image", 100, patch=10, last_pool=11, classes=21_000)


def three_stages(name: str, size: int, *, patch: int, last_pool: int, classes: int) -> Network:
    """Three stages of filters, pooling and normalisation over a square picture."""
    net = Network(name)
    states = net.input("picture", shape=(size, size, 3))
    for pool_size, stride in ((3, 1), (3, 1), (last_pool, last_pool)):
        states = LocallyConnected2D(8, kernel_size=patch)(states)
        states = LocalContrastNormalisation2D(5)(L2Pool2D(pool_size, stride=stride)(states))
    net.loss = OneVsRest()(Dense(classes, name="scores")(states), net.target("label"))
    return net


def caltech() -> Network:
    """A convolutional network for Caltech-101 (102 classes with the background): 74,821,606 parameters."""
    net = Network("caltech")
    states = net.input("picture", shape=(120, 160, 3))
    states = MaxPool2D(3, stride=2)(Conv2D(96, kernel_size=11, stride=4, activation="relu")(states))
    states = MaxPool2D(3, stride=2)(Conv2D(256, kernel_size=5, padding=2, activation="relu")(states))
    for filters in (640, 640, 256):
        states = Conv2D(filters, kernel_size=3, padding=1, activation="relu")(states)
    for _ in range(2):
        states = Dense(4096, activation="relu")(states)
    return _classified(net, Dense(102, name="scores")(states))


def perceptron() -> Network:
    """A multilayer perceptron 64-128-10: nothing but overhead."""
    net = Network("perceptron")
    states = net.input("picture", shape=64)
    return _classified(net, Dense(10, name="scores")(Dense(128, activation="relu", name="hidden")(states)))


def transformer() -> Network:
    """A causal transformer block over 64 positions of 256 features, 8 heads, and 10 classes over it."""
    net = Network("transformer")
    x = PositionEmbedding(name="positions")(net.input("x", shape=(64, 256)))
    normal = LayerNorm(name="norm1")(x)
    x = Add(name="attended")(x, MultiHeadAttention(8, causal=True, name="attention")(normal))
    wide = Activation("gelu", name="gelu")(Linear(1024, name="wide")(LayerNorm(name="norm2")(x)))
    x = Add(name="block")(x, Linear(256, name="narrow")(wide))
    return _classified(net, Dense(10, name="scores")(x))


def lstm() -> Network:
    """An LSTM of 256 units over 64 positions of 128 features, and 10 classes over its last state."""
    net = Network("lstm")
    last = LSTM(256, name="lstm")(net.input("x", shape=(64, 128)))
    return _classified(net, Dense(10, name="scores")(last))


def words() -> Network:
    """32 of 20,000 words by a table of 64 numbers each, a hidden layer and 1,000 classes."""
    net = Network("words")
    found = Embedding(20_000, 64, name="table")(net.input("words", shape=32, classes=20_000))
    hidden = Dense(512, activation="relu", name="hidden")(found)
    return _classified(net, Dense(1000, name="scores")(hidden))


@cache
def imported(name: str) -> Network:
    """A module of PyTorch that was given to `from_torch`; PyTorch plays the same module."""
    # The networks above need no torch in the process that only writes and reads figures.
    from benchmarks._torch_models import MODELS, model
    from partita.engine.pytorch.torch_module import TorchModule

    given = TorchModule(model(name), (MODELS[name][1],), loss="cross-entropy", target="label", name=name)
    return given.network


def _classified(net: Network, scores: SymbolicTensor) -> Network:
    net.loss = SoftmaxCrossEntropy()(scores, net.target("label"))
    return net


WORKS: Final = {
    "speech": Work(speech, 0.1),
    "first": Work(first, 0.002),
    "image": Work(image, 0.001),
    "caltech": Work(caltech, 0.01),
    "perceptron": Work(perceptron, 0.1),
    "transformer": Work(transformer, 0.01),
    "lstm": Work(lstm, 0.1),
    "words": Work(words, 0.1),
    "blocks": Work(blocks, 0.002),
    "resnet": Work(partial(imported, "resnet"), 0.01),
    "gpt2": Work(partial(imported, "gpt2"), 0.1),
}
"""By name."""


def parameters(graph: Graph) -> dict[str, Array]:
    """The first values of each parameter."""
    return initialise(graph.parameters.values(), SEED)


def data(graph: Graph, batch: int) -> dict[str, Array]:
    """Random inputs `[example, *shape]` and labels."""
    draw = np.random.default_rng(1)
    found: dict[str, Array] = {
        grid.name: draw.standard_normal((batch, *grid.shape), dtype=np.float32) for grid in graph.inputs
    }
    for grid in graph.inputs:
        if isinstance(grid.layer, Placeholder) and grid.layer.classes is not None:
            found[grid.name] = draw.integers(0, grid.layer.classes, (batch, *grid.shape))
    for grid in graph.targets:
        assert isinstance(grid.layer, Placeholder) and grid.layer.classes is not None
        shape = batch if grid.shape == (1,) else (batch, *grid.shape)
        found[grid.name] = draw.integers(0, grid.layer.classes, shape)
    return found


def write(name: str, batch: int, folder: Path) -> None:
    """Writes a network with its parameters and data, as a recipe."""
    work = WORKS[name]
    graph = work.network().graph()
    (loss,), (inputs,), (target,) = graph.losses, graph.inputs, graph.targets
    layers = tuple(_recipe(graph, grid) for grid in graph.computed if grid.name != loss)
    recipe = Recipe(name, batch, work.rate, layers, graph[loss].layer.kind, inputs.name, target.name)
    recipe.write(folder, {**parameters(graph), **data(graph, batch)})


def _recipe(graph: Graph, grid: Grid) -> LayerRecipe:
    layer, source = grid.layer, graph[grid.sources[0]].shape
    settings: dict[str, Any] = {}
    if isinstance(layer.connectivity, Patch):
        axes = layer.connectivity.axes(source)
        for setting in ("size", "stride", "before", "dilation"):
            settings[setting] = tuple(getattr(axis, setting) for axis in axes)
        settings["groups"] = layer.connectivity.groups
    if isinstance(layer, LocalContrastNormalisation2D):
        settings |= {"windows": layer.windows, "floor": layer.floor}
    names = tuple(parameter.name for parameter in grid.parameters)
    return LayerRecipe(layer.kind, source, grid.shape, layer.activation, names, settings)


def flops(graph: Graph, batch: int) -> float:
    """Operations of a training step: forward pass, needed gradients of outputs, gradients of parameters."""
    total = 0.0
    for grid in graph.computed:
        passes = 1 + bool(grid.parameters) + any(source in graph.needs_gradient for source in grid.sources)
        total += passes * grid.flops_per_node * grid.n_nodes * batch
    return total


def bytes_moved(graph: Graph, item_bytes: int) -> float:
    """Least bytes of parameters moved in a training step: read forward and backward, and updated.

    Args:
        graph: the network.
        item_bytes: bytes of a parameter as kernels read it; if not 4, the update also writes this copy.
    """
    total = 0.0
    for grid in graph.computed:
        reads = 1 + any(source in graph.needs_gradient for source in grid.sources)
        update = 8 + (item_bytes if item_bytes != 4 else 0)
        total += sum(p.size for p in grid.parameters) * (reads * item_bytes + update)
    return total
