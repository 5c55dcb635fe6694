"""Layers that Hypothesis draws for the tests of kernels."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from partita.layers import (
    Activation,
    Add,
    AveragePool2D,
    Connectivity,
    Conv2D,
    Edges,
    Full,
    L2Pool2D,
    Layer,
    LocalContrastNormalisation2D,
    LocallyConnected2D,
    MaxPool2D,
    OneToOne,
    Patch,
)
from partita.layers.pooling import Pool2D
from tests.kernels.cases import (
    Case,
    activations,
    batches,
    case,
    extents,
    seeds,
)


@st.composite
def wired(draw: st.DrawFn) -> tuple[Connectivity, tuple[int, ...], tuple[int, ...] | None]:
    """A wiring, the shape of its input, and how many nodes to ask for."""
    kind = draw(st.sampled_from(["patch", "full", "one to one", "edges"]))
    if kind == "patch":
        stride, padding = draw(st.integers(1, 3)), draw(st.sampled_from(["valid", "same", 1]))
        shape = (draw(st.integers(2, 8)), *draw(st.sampled_from([(1,), (2,), (3, 2), (2, 3, 1)])))
        return Patch(2, stride=stride, padding=padding), shape, (draw(st.integers(1, 3)),)
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    if kind == "full":
        return Full(), shape, draw(st.sampled_from([(4,), (2, 3)]))
    if kind == "one to one":
        return OneToOne(), shape, None
    nodes = draw(st.sampled_from([(5,), (4, 3)]))
    pairs = st.tuples(st.integers(0, math.prod(shape) - 1), st.integers(0, math.prod(nodes) - 1))
    return Edges(draw(st.lists(pairs, unique=True, max_size=20)), nodes=nodes), shape, None


@st.composite
def locally_connected(draw: st.DrawFn) -> LocallyConnected2D:
    size = draw(extents)
    smallest = min(size) if isinstance(size, tuple) else size
    return LocallyConnected2D(
        draw(st.one_of(st.integers(1, 9), st.just(19))),
        size,
        stride=draw(extents),
        padding=draw(st.one_of(st.sampled_from(["valid", "same"]), st.integers(0, smallest - 1))),
        activation=draw(activations),
        use_bias=draw(st.booleans()),
    )


POOLS = [MaxPool2D, AveragePool2D, L2Pool2D]


@st.composite
def pools(draw: st.DrawFn) -> Pool2D:
    size, stride = draw(extents), draw(st.one_of(st.none(), extents))
    height, width = (size, size) if isinstance(size, int) else size
    inside = st.tuples(st.integers(0, height - 1), st.integers(0, width - 1))
    padding = draw(st.one_of(st.just("valid"), st.just("same"), st.tuples(inside, inside).map(_pairs)))
    kind, ceil = draw(st.sampled_from([None, *POOLS])), draw(st.booleans())
    if kind is None or (ceil and kind is AveragePool2D):
        return AveragePool2D(size, stride=stride, padding=padding, ceil_mode=ceil, count_include_pad=False)
    return kind(size, stride=stride, padding=padding, ceil_mode=ceil)


def _pairs(ends: tuple[tuple[int, int], tuple[int, int]]) -> tuple[tuple[int, int], tuple[int, int]]:
    """((top, bottom), (left, right)) of (top, left) and (bottom, right)."""
    (top, left), (bottom, right) = ends
    return (top, bottom), (left, right)


@st.composite
def normalisations(draw: st.DrawFn) -> LocalContrastNormalisation2D:
    extents = st.sampled_from([1, 3, 5])
    return LocalContrastNormalisation2D(
        draw(st.one_of(extents, st.tuples(extents, extents))),
        sigma=draw(st.one_of(st.none(), st.floats(0.5, 4.0))),
        floor=draw(st.sampled_from([0.01, 0.8])),
    )


@st.composite
def convolutions(draw: st.DrawFn, *, plain: bool = False) -> Conv2D:
    """A convolution; without gaps and groups if `plain`."""
    size, dilation, groups = draw(extents), draw(extents), draw(st.sampled_from([1, 1, 2, 3]))
    if plain:
        dilation, groups = 1, 1
    smallest = min(size) if isinstance(size, tuple) else size
    return Conv2D(
        groups * draw(st.integers(1, 6 // groups)),
        size,
        stride=draw(extents),
        padding=draw(st.one_of(st.sampled_from(["valid", "same"]), st.integers(0, smallest - 1))),
        dilation=dilation,
        groups=groups,
        activation=draw(activations),
        use_bias=draw(st.booleans()),
    )


@st.composite
def convolution_cases(
    draw: st.DrawFn,
    *,
    sizes: st.SearchStrategy[int] = batches,
    dtype: type = np.float64,
    plain: bool = False,
) -> Case:
    """A convolution over a picture in which its widest patch has room."""
    layer = draw(convolutions(plain=plain))
    picture = draw(st.integers(7, 11)), draw(st.integers(7, 9)), layer.groups * draw(st.integers(1, 2))
    return case(layer, picture, batch=draw(sizes), seed=draw(seeds), dtype=dtype)


elementwise_shapes = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)


@st.composite
def layers_and_inputs(draw: st.DrawFn) -> tuple[Layer, list[tuple[int, ...]]]:
    shape = draw(elementwise_shapes)
    if draw(st.booleans()):
        return Activation(draw(activations)), [shape]
    return Add(), [shape] * draw(st.integers(2, 4))


dense_shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)
