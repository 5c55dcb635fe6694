"""Small networks that have every kind of layer between them: of sequences, and of pictures."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from partita import layers as public
from partita.layers import (
    GRU,
    L2,
    LSTM,
    Activation,
    Add,
    Attention,
    Average,
    AveragePool2D,
    BatchNorm,
    Bernoulli,
    Bias,
    Concatenate,
    Conv1D,
    Conv2D,
    Crop,
    Dense,
    DenseTransposed,
    DepthwiseConv2D,
    Dropout,
    Embedding,
    Flatten,
    GlobalAveragePool,
    GlobalMaxPool,
    Graph,
    GroupNorm,
    L2Pool2D,
    Layer,
    LayerNorm,
    Linear,
    LocalContrastNormalisation2D,
    LocallyConnected2D,
    Loss,
    Maximum,
    MaxPool2D,
    MultiHeadAttention,
    Multiply,
    Network,
    PaddingMask,
    Permute,
    PositionEmbedding,
    Reshape,
    RMSNorm,
    Slice,
    Softmax,
    SoftmaxCrossEntropy,
    UpSample,
    ZeroPad,
)

N_WORDS, CLASSES = 7, 3


def sequences(*, positions: int = 6, units: int = 4) -> Network:
    """Layers of words and positions; the class is that of the first word."""
    net = Network("sequences")
    words = net.input("words", shape=positions, classes=N_WORDS)
    mask = PaddingMask(0)(words)
    x = PositionEmbedding()(Embedding(N_WORDS, units, initialiser="he", name="table")(words))
    x = Add()(x, MultiHeadAttention(2, name="attention")(LayerNorm()(x), mask=mask))
    x = Add()(x, MultiHeadAttention(2, rows="heads", causal=True, name="heads")(RMSNorm()(x)))
    x = Linear(units, activation="tanh", regulariser=L2(1e-3))(x)
    x = Conv1D(units, 2, padding="same")(Dropout(0.1)(x))
    x = Concatenate()(LSTM(3, return_sequences=True)(x, mask), GRU(3, return_sequences=True)(x))
    x = Multiply()(x, Maximum()(x, Average()(x, Softmax()(x))))
    x = Concatenate(0)(Flatten()(Slice(0, name="first")(x)), LSTM(3, name="last")(x, mask))
    code = Dense(3, name="code")
    back = DenseTransposed(x.shape, weight=code.parameter("weight"), name="back")
    sums = code(x)
    x = Concatenate()(x, sums, Bias(name="restored")(back(Bernoulli()(sums))))
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(CLASSES, name="scores")(x), net.target("y"))
    return net


def pictures(*, height: int = 8, norm: bool = True) -> Network:
    """Layers of pictures; the class is that of the brighter third. `norm`: whether it has a BatchNorm."""
    net = Network("pictures")
    picture = net.input("picture", shape=(height, 6, 2))
    x = LocalContrastNormalisation2D(3)(Conv2D(4, 3, padding="same", name="conv")(picture))
    if norm:
        x = BatchNorm(name="norm")(x)
    x = Add()(x, DepthwiseConv2D(3, padding="same")(GroupNorm(2)(Activation("gelu")(x))))
    x = Crop(((0, 1), (0, 1)))(ZeroPad(((0, 1), (0, 1)))(UpSample(2)(x)))
    pooled = [kind(2, stride=2, padding=(0, 1)) for kind in (MaxPool2D, AveragePool2D, L2Pool2D)]
    x = LocallyConnected2D(2, 2, stride=2, padding="same")(Add()(*(pool(x) for pool in pooled)))
    turned = Permute((1, 0, 2))(x)
    ends = [GlobalAveragePool()(turned), GlobalMaxPool()(x), Reshape((-1,))(Slice(0, 1)(x))]
    net.loss = SoftmaxCrossEntropy(name="loss")(
        Dense(CLASSES, name="scores")(Concatenate()(*ends)), net.target("y")
    )
    return net


def examples_of(graph: Graph, n: int) -> dict[str, Any]:
    """Examples that can be learnt."""
    draw = np.random.default_rng(5)
    source = graph.inputs[0]
    if source.name == "words":
        words = draw.integers(1, N_WORDS, (n, *source.shape))
        words[::3, source.n_rows // 2 + 1 :] = 0
        return {"words": words, "y": words[:, :1] % CLASSES}
    labels = draw.integers(0, CLASSES, (n, 1))
    picture = draw.normal(size=(n, *source.shape)) / 2
    picture += (labels[..., None, None] - 1.0) * np.linspace(-1, 1, source.n_rows)[:, None, None]
    return {"picture": picture, "y": labels}


def kinds() -> set[type[Layer]]:
    """Every layer of the package that computes something, losses and users' nodes excepted."""
    exported = [kind for kind in vars(public).values() if inspect.isclass(kind)]
    found = {kind for kind in exported if issubclass(kind, Layer) and not inspect.isabstract(kind)}
    return {kind for kind in found if not issubclass(kind, Loss | public.Node)} | {Attention}
