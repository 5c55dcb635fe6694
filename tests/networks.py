"""Hypothesis strategies that draw networks: small, but of every shape that the layers allow.

Inputs of any rank, branches, skips, layers that listen to one layer twice, rows that nobody listens to, nodes
that listen to nobody, one loss or two, on the last layer or in the middle. Every draw is a network that
`graph()` accepts. The functions of nodes stand at module level, so that other processes can import them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from partita.layers import (
    GRU,
    LSTM,
    Activation,
    Add,
    Attention,
    AveragePool2D,
    BatchNorm,
    BinaryCrossEntropy,
    Concatenate,
    Conv1D,
    Conv2D,
    Crop,
    Dense,
    DepthwiseConv2D,
    Dropout,
    Edges,
    Embedding,
    FeedForward,
    Flatten,
    Full,
    GlobalAveragePool,
    GlobalMaxPool,
    Graph,
    Grid,
    GroupNorm,
    HalfSquaredError,
    Huber,
    L2Pool2D,
    Layer,
    LayerNorm,
    Linear,
    LocalContrastNormalisation2D,
    LocallyConnected2D,
    Loss,
    MaxPool2D,
    MultiHeadAttention,
    Multiply,
    Network,
    Node,
    OneToOne,
    OneVsRest,
    PaddingMask,
    Patch,
    Permute,
    PositionEmbedding,
    Reshape,
    RMSNorm,
    Slice,
    Softmax,
    SoftmaxCrossEntropy,
    SymbolicTensor,
    UpSample,
    ZeroPad,
    per_edge,
    per_node,
)
from partita.layers.attention_heads import AttentionHeads
from partita.layers.box import Shape
from partita.layers.recurrent import Recurrent
from partita.layers.units import ToPositions, ToUnits

FUNCTIONS = ("linear", "relu", "sigmoid", "tanh")
EXACT = (*FUNCTIONS, "leaky_relu")
"""Functions whose bits do not depend on a number's place in an array; PyTorch's others do."""
ALL_FUNCTIONS = (*EXACT, "gelu", "silu", "elu", "softplus")


def leaky_sum(incoming, weight, bias):  # type: ignore[no-untyped-def]
    """A weighted sum with a slope for negative sums; of a node without incoming edges, the bias."""
    total = bias
    for k in range(len(incoming)):
        total += weight[k] * incoming[k]
    return total if total > 0 else 0.25 * total


def leaky_sum_errors(incoming, weight, bias, state, error):  # type: ignore[no-untyped-def]
    """Backward function of `leaky_sum`."""
    delta = error if state > 0 else 0.25 * error
    return delta * weight, delta * incoming, delta


def energy(incoming, gain):  # type: ignore[no-untyped-def]
    """A sum of squares, scaled: its errors need the incoming states."""
    total = 0 * gain
    for k in range(len(incoming)):
        total += incoming[k] * incoming[k]
    return gain * total


def energy_errors(incoming, gain, state, error):  # type: ignore[no-untyped-def]
    """Backward function of `energy`."""
    total = 0 * gain
    for k in range(len(incoming)):
        total += incoming[k] * incoming[k]
    return 2 * gain * error * incoming, error * total


LEARNS = {
    leaky_sum: (leaky_sum_errors, (("weight", per_edge("glorot")), ("bias", per_node(0.125)))),
    energy: (energy_errors, (("gain", per_node(0.25)),)),
}


def is_rounded(grid: Grid) -> bool:
    """Whether PyTorch's functions compute the layer, so that its cuts agree within rounding."""
    layer = grid.layer
    sequential = Attention | AttentionHeads | ToPositions | ToUnits | Recurrent | Conv1D
    by_torch = GroupNorm | LayerNorm | Linear | RMSNorm | Softmax | Conv2D | DepthwiseConv2D
    return isinstance(layer, by_torch | sequential) or (
        isinstance(layer, Activation) and layer.function not in EXACT
    )


SHARED = {
    leaky_sum: tuple((name, replace(kind, shared_by="filter")) for name, kind in LEARNS[leaky_sum][1]),
    energy: (("gain", per_node(0.25, shared_by="layer")),),
}


@st.composite
def node_layers(draw: st.DrawFn, shape: Shape, *, local: bool = False, shared: bool = False) -> Node:
    """A `Node` over an input of this shape, with any connectivity that fits; not a full one if `local`, some
    that share parameters if `shared`.
    """
    upward = draw(st.sampled_from(list(LEARNS)))
    downward, learns = LEARNS[upward]
    kinds = ["full"] * (not local) + ["one to one", "edges"] + ["patch"] * (len(shape) > 1)
    kind = draw(st.sampled_from(kinds))
    if shared and draw(st.booleans()):
        learns = SHARED[upward]
    if kind == "full":
        return Node(Full(), upward, downward, learns, draw(st.sampled_from([(1,), (3,), (4, 2), (3, 2, 2)])))
    if kind == "one to one":
        return Node(OneToOne(), upward, downward, learns)
    if kind == "edges":
        return Node(draw(sparse(shape)), upward, downward, LEARNS[upward][1])
    patch = draw(patches(shape))
    return Node(patch, upward, downward, learns, None if patch.per_channel else (draw(st.integers(1, 2)),))


@st.composite
def sparse(draw: st.DrawFn, shape: Shape) -> Edges:
    """Random edges from a grid of this shape; some nodes may have none, some rows no receiver."""
    nodes = draw(st.sampled_from([(1,), (4,), (6,), (3, 2)]))
    pairs = st.tuples(st.integers(0, math.prod(shape) - 1), st.integers(0, math.prod(nodes) - 1))
    return Edges(draw(st.sets(pairs, min_size=1, max_size=12)), nodes=nodes)


@st.composite
def patches(draw: st.DrawFn, shape: Shape) -> Patch:
    """Patches of every spatial axis, with strides shorter and longer than they are, some with holes."""
    size = tuple(draw(st.integers(1, min(extent, 3))) for extent in shape[:-1])
    stride = tuple(draw(st.integers(1, 3)) for _ in size)
    padded = tuple(draw(st.integers(0, extent - 1)) for extent in size)
    uneven = tuple(
        (draw(st.integers(0, extent - 1)), most) for extent, most in zip(size, padded, strict=True)
    )
    padding = draw(st.sampled_from([0, padded, uneven, "same"]))
    widest = (max(1, (extent - 1) // max(1, length - 1)) for extent, length in zip(shape, size, strict=False))
    dilation = tuple(draw(st.integers(1, most)) for most in widest)
    return Patch(size, stride=stride, padding=padding, per_channel=draw(st.booleans()), dilation=dilation)


@st.composite
def layers(draw: st.DrawFn, shape: Shape, *, local: bool = False, shared: bool = False) -> Layer:
    """Any layer of one input of this shape; none that is fully connected if `local`, some that share weights
    if `shared`.
    """
    makers: list[Callable[[], Layer]] = [
        lambda: Activation(draw(st.sampled_from(EXACT if local else ALL_FUNCTIONS))),
        lambda: draw(node_layers(shape, local=local, shared=shared)),
        lambda: Dropout(draw(st.sampled_from([0.25, 0.5]))),
    ]
    if not local:
        norms = st.sampled_from([LayerNorm, RMSNorm])
        makers.append(lambda: draw(norms)(epsilon=0.5, scale=shared or draw(st.booleans())))
        makers.append(lambda: Dense(draw(st.integers(1, 6)), activation=draw(st.sampled_from(FUNCTIONS))))
        makers.append(Softmax)
        makers.append(lambda: Linear(draw(st.integers(1, 4)), axis=-draw(st.integers(0, int(shared)))))
        makers.append(PositionEmbedding)
    if shared and not local and len(shape) == 2:
        makers.append(lambda: Conv1D(2, 2, stride=draw(st.integers(1, 2)), padding="same"))
    if shared and not local and len(shape) == 3:
        makers.append(lambda: DepthwiseConv2D(draw(st.integers(1, 3)), padding="same", depth_multiplier=2))
    if len(shape) > 1 and not local:
        makers.append(lambda: GroupNorm(draw(st.sampled_from([1, shape[-1]])), epsilon=0.5, scale=shared))
        makers.append(GlobalAveragePool)
    if shared and not local:
        makers.append(lambda: BatchNorm(epsilon=0.5, scale=draw(st.booleans())))
    makers.append(lambda: draw(copies(shape)))
    if len(shape) == 2 and shared and not local:
        makers += [lambda: draw(attentions()), lambda: draw(recurrent()), lambda: draw(feed_forwards())]
    if len(shape) == 3:
        makers += [lambda: draw(pools(shape))] * 2 + [lambda: draw(local_layers(shape))] * 4
        makers += [lambda: draw(convolutions(shape, plain=local))] * (4 * shared)
        makers.append(lambda: draw(normalisations()))
    return draw(st.sampled_from(makers))()


@st.composite
def copies(draw: st.DrawFn, shape: Shape) -> Layer:
    """A layer whose nodes copy those of an input of this shape, in another shape, order or number."""
    axis = draw(st.integers(0, len(shape) - 1))
    found: list[Layer] = [Flatten(), Reshape((-1, shape[-1])), Reshape((shape[-1], -1, 1))]
    found.append(Permute(tuple(draw(st.permutations(range(len(shape)))))))
    found.append(Slice(draw(st.integers(0, shape[axis] - 1)), step=draw(st.integers(1, 2)), axis=axis))
    if len(shape) > 1:
        found.append(GlobalMaxPool())
        found += [ZeroPad(((1, 2), *((0, 1) for _ in shape[2:]))), UpSample((2, *(1 for _ in shape[2:])))]
        found.append(Crop(tuple((extent // 3, 0) for extent in shape[:-1])))
    return draw(st.sampled_from(found))


@st.composite
def attentions(draw: st.DrawFn) -> Any:
    """An attention that places several layers over any sequence, with rows of positions or of heads."""
    rows, causal = draw(st.sampled_from(["positions", "heads"])), draw(st.booleans())
    return MultiHeadAttention(draw(st.integers(1, 3)), draw(st.integers(1, 2)), causal=causal, rows=rows)


@st.composite
def feed_forwards(draw: st.DrawFn) -> Any:
    """Dense layers at each position, with rows of positions or of units between them."""
    rows = draw(st.sampled_from(["positions", "units"]))
    return FeedForward(draw(st.integers(1, 5)), activation=draw(st.sampled_from(ALL_FUNCTIONS)), rows=rows)


@st.composite
def recurrent(draw: st.DrawFn) -> Recurrent:
    """A layer that returns its last state, or a sequence."""
    kind = draw(st.sampled_from([LSTM, GRU]))
    back = draw(st.booleans())
    return kind(draw(st.integers(1, 3)), return_sequences=draw(st.booleans()), go_backwards=back)


@st.composite
def convolutions(draw: st.DrawFn, shape: Shape, *, plain: bool = False) -> Conv2D:
    """Filters that all places of a picture of this shape share; without groups and gaps if `plain`."""
    patch, groups = draw(patches(shape)), draw(st.sampled_from([1, shape[-1]]))
    if plain:
        patch, groups = replace(patch, dilation=1, padding="same"), 1
    return Conv2D(
        groups * draw(st.integers(1, 2)),
        patch.size,
        stride=patch.stride,
        padding=patch.padding,
        dilation=patch.dilation,
        groups=groups,
        activation=draw(st.sampled_from(FUNCTIONS)),
        use_bias=draw(st.booleans()),
    )


@st.composite
def normalisations(draw: st.DrawFn) -> LocalContrastNormalisation2D:
    """Windows narrower and wider than pictures, and floors that keep rounding from being blown up."""
    size = draw(st.sampled_from([3, (1, 5), (5, 1)]))
    return LocalContrastNormalisation2D(size, floor=draw(st.sampled_from([0.25, 1.0])))


@st.composite
def local_layers(draw: st.DrawFn, shape: Shape) -> LocallyConnected2D:
    """Filters on a picture of this shape."""
    patch = draw(patches(shape))
    return LocallyConnected2D(
        draw(st.integers(1, 2)),
        patch.size,
        stride=patch.stride,
        padding=patch.padding,
        activation=draw(st.sampled_from(FUNCTIONS)),
        use_bias=draw(st.booleans()),
    )


@st.composite
def pools(draw: st.DrawFn, shape: Shape) -> Layer:
    """A pool over a picture of this shape, its patches apart, touching or overlapping."""
    patch = draw(patches(shape))
    kind = draw(st.sampled_from([MaxPool2D, AveragePool2D, L2Pool2D]))
    padding = patch.padding if patch.dilation == (1, 1) else 0
    ceil = draw(st.booleans())
    more = {"count_include_pad": not ceil and draw(st.booleans())} if kind is AveragePool2D else {}
    return kind(patch.size, stride=patch.stride, padding=padding, ceil_mode=ceil, **more)


def shapes(*, wide: bool = False) -> st.SearchStrategy[Shape]:
    """Shapes of inputs: rows of nodes, and pictures; with `wide`, pictures alone, with columns to cut."""
    if wide:
        return st.tuples(st.integers(1, 7), st.integers(2, 7), st.integers(1, 2))
    pictures = st.tuples(st.integers(1, 8), st.integers(1, 3), st.integers(1, 2))
    return st.one_of(
        pictures, pictures, st.tuples(st.integers(1, 6)), st.tuples(st.integers(1, 6), st.just(2))
    )


@st.composite
def networks(
    draw: st.DrawFn,
    *,
    max_layers: int = 7,
    losses: bool = True,
    local: bool = False,
    shared: bool = False,
    wide: bool = False,
    tied: bool = False,
) -> Graph:
    """A whole network as a graph, with losses or without; `local` and `shared` as in `layers`, `wide` as in
    `shapes`; if `tied`, calls of layers that use the parameters of others.
    """
    net = Network("drawn")
    given = [
        net.input(f"in{n}", shape=draw(shapes(wide=wide)))
        for n in range(draw(st.sampled_from([1, 1, 1, 2, 3])))
    ]
    placed: list[SymbolicTensor] = [
        draw(layers(source.shape, local=local, shared=shared))(source) for source in given
    ]
    if shared and not local and not wide and draw(st.integers(0, 2)) == 0:
        words = net.input("words", shape=draw(st.integers(1, 6)), classes=5)
        padding = draw(st.sampled_from([None, 2]))
        placed.append(Embedding(5, draw(st.integers(1, 3)), padding_idx=padding)(words))
        if draw(st.booleans()):
            mask, attention = PaddingMask(draw(st.integers(0, 4)))(words), draw(attentions())
            placed.append(attention(placed[-1], mask=mask))
            placed.append(draw(recurrent())(placed[-2], mask))
    consumed: set[str] = set()
    if tied:
        placed += draw(_tied(placed))
    for _ in range(draw(st.integers(0, max(0, max_layers - len(given))))):
        layer, sources = draw(_grown(given, placed, local=local, shared=shared))
        consumed.update(source.name for source in sources)
        placed.append(layer(*sources))
    if losses:
        loose = [states for states in placed if states.name not in consumed]
        net.loss = _with_loss(draw, net, loose, placed, local=local)
    return net.graph()


@st.composite
def _tied(draw: st.DrawFn, placed: Sequence[SymbolicTensor]) -> list[SymbolicTensor]:
    """Two or three calls that use the same parameters, of one layer or of several, some above others."""
    source = draw(st.sampled_from(placed))
    width, use_bias = source.shape[-1], draw(st.booleans())
    if draw(st.booleans()):
        words = source.network.input("tied_words", shape=draw(st.integers(1, 5)), classes=4)  # type: ignore[attr-defined]
        embedding = Embedding(4, draw(st.integers(1, 3)))
        found = embedding(words)
        axis = draw(st.sampled_from([-1, 0]))
        scores = Linear(4, weight=embedding.weight, use_bias=use_bias, axis=axis)
        return [found, scores(Permute((1, 0))(found) if axis == 0 else found)]
    makers: list[Callable[[], Layer]] = [
        lambda: Linear(width, use_bias=use_bias, activation="tanh"),
        lambda: Linear(source.shape[0], axis=0, use_bias=use_bias),
        lambda: RMSNorm(epsilon=0.5),
        lambda: PositionEmbedding(),
        lambda: Node(OneToOne(), leaky_sum, *LEARNS[leaky_sum]),
    ]
    if len(source.shape) == 1:
        makers += [lambda: Dense(width, use_bias=use_bias, activation="tanh")] * 3
    if len(source.shape) == 3:
        makers += [lambda: LocallyConnected2D(width, 3, padding="same")] * 2
        makers.append(lambda: Conv2D(width, 3, padding="same"))
        both = LEARNS[leaky_sum][0], (SHARED[leaky_sum][0], LEARNS[leaky_sum][1][1])  # own biases
        makers.append(lambda: Node(Patch(3, padding=1), leaky_sum, *both, (width,)))
    layer, found = draw(st.sampled_from(makers))(), [source]
    for _ in range(draw(st.integers(2, 3))):
        found.append(layer(draw(st.sampled_from(found))))
    if isinstance(layer, Dense):
        sources = [one for one in placed if len(one.shape) == 2 and one.shape[1] == width]
        shared = layer.parameter("weight")
        found += [Linear(width, weight=shared, axis=-1)(one) for one in sources[:1]]
    return found[1:]


@st.composite
def _grown(
    draw: st.DrawFn,
    given: Sequence[SymbolicTensor],
    placed: Sequence[SymbolicTensor],
    *,
    local: bool,
    shared: bool,
) -> tuple[Layer, tuple[SymbolicTensor, ...]]:
    """A further layer and its inputs: mostly the last one, else a branch; or a sum, often a skip."""
    source = draw(st.sampled_from([placed[-1]] * 3 + [*placed, *given]))
    equal = [states for states in placed if states.shape == source.shape]
    if equal and draw(st.integers(0, 3)) == 0:
        joined = draw(st.sampled_from([Add(), Add(), Multiply(), Concatenate(), Concatenate(0)]))
        return joined, (source, *draw(st.lists(st.sampled_from(equal), min_size=1, max_size=2)))
    return draw(layers(source.shape, local=local, shared=shared)), (source,)


def _with_loss(
    draw: st.DrawFn, net: Network, loose: list[SymbolicTensor], placed: list[SymbolicTensor], *, local: bool
) -> list[SymbolicTensor]:
    """A loss on each loose end (first joined, if many); or one more, perhaps in the middle."""
    if not local and (len(loose) > 2 or (len(loose) == 2 and draw(st.booleans()))):
        units = draw(st.integers(1, 5))
        loose = [Add()(*(Dense(units)(states) for states in loose))]
    elif len(loose) == 1 and draw(st.integers(0, 3)) == 0:
        loose = [*loose, draw(st.sampled_from(placed))]
    found = []
    for n, scores in enumerate(loose):
        kinds: list[Loss] = [HalfSquaredError(), BinaryCrossEntropy(), Huber(0.5, loss_weight=0.5)]
        if len(scores.shape) <= 2 and scores.shape[-1] > 1:
            weight = tuple(1.0 + k % 3 for k in range(scores.shape[-1]))
            kinds += [SoftmaxCrossEntropy(), SoftmaxCrossEntropy(weight, 1, 0.1)]
        if len(scores.shape) == 1 and scores.shape[0] > 1:
            kinds.append(OneVsRest())
        given = [
            net.target(f"target{n}"),
            *(net.target(f"weight{n}") for _ in range(draw(st.integers(0, 1)))),
        ]
        found.append(draw(st.sampled_from(kinds))(scores, *given))
    return found


def large(*, nodes: int = 500) -> Network:
    """Two dense layers with products large enough for a choice of library."""
    net = Network("large")
    hidden = Dense(nodes, name="hidden")(net.input("x", shape=300))
    net.loss = SoftmaxCrossEntropy()(Dense(10, name="scores")(hidden), net.target("y"))
    return net
