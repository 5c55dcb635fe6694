"""Small random networks and clusters, and every possible plan of them: what a search is measured against."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import combinations, pairwise, permutations, product

from partita.layers import (
    Add,
    Dense,
    Graph,
    Grid,
    HalfSquaredError,
    LocallyConnected2D,
    MaxPool2D,
    Network,
    SoftmaxCrossEntropy,
    SymbolicTensor,
)
from partita.partitioner import Cluster, InputSplit, Link, Machine, Replicated, RowSplit, Whole
from partita.partitioner.assign.assign import stays_with_scores
from partita.partitioner.assign.cuts import Cut


def small(draw: random.Random, *, least: int = 200, most: int = 4000) -> tuple[Graph, Cluster]:
    """A network of two to five layers and a cluster of two or three machines, with so many plans."""
    while True:
        found = _graph(draw), _cluster(draw)
        if least <= n_plans(*found) <= most:
            return found


def _graph(draw: random.Random) -> Graph:
    """Dense layers, perhaps over a picture, perhaps with a skip; few rows, but nodes that take their time."""
    net = Network("small")
    if draw.random() < 0.5:
        states = net.input("x", shape=(draw.randint(4, 6), draw.randint(4, 40), draw.randint(1, 8)))
        states = LocallyConnected2D(draw.randint(2, 8), 3, name="local")(states)
        if draw.random() < 0.5:
            states = MaxPool2D(2, name="pool")(states)
    else:
        states = net.input("x", shape=(draw.randint(2, 4), draw.randint(10, 1000)))
    placed: list[SymbolicTensor] = []
    for n in range(draw.randint(1, 3)):
        states = Dense(draw.randint(2, 5), name=f"dense{n}")(states)
        alike = [other for other in placed if other.shape == states.shape]
        if alike and draw.random() < 0.5:
            states = Add(name=f"add{n}")(states, draw.choice(alike))
        placed.append(states)
    loss = draw.choice([SoftmaxCrossEntropy, HalfSquaredError])
    net.loss = loss(name="loss")(states, net.target("y"))
    return net.graph()


def _cluster(draw: random.Random) -> Cluster:
    """Machines of like or unlike speed; links that are slow to begin, or slow to carry."""
    base = 10 ** draw.uniform(6, 9)
    machines = tuple(
        Machine(f"m{n}", flops_per_s=base * draw.choice([1, 1, 1, 2, 4]), bytes_per_s=base)
        for n in range(draw.choice([2, 2, 3]))
    )
    return Cluster(machines, Link(10 ** draw.uniform(-6, -3), 10 ** draw.uniform(6, 9)))


def n_plans(graph: Graph, cluster: Cluster) -> int:
    """Number of plans."""
    return math.prod(sum(1 for _ in _every_cut(graph, grid, len(cluster))) for grid in graph.computed)


def every_plan(graph: Graph, cluster: Cluster) -> Iterator[dict[str, Cut]]:
    """Every layer on all machines in all orders with all boundaries: by rows, by inputs, or as copies.

    A loss lies on any machine, on several, or with its scores. (Columns of pictures are not cut, and pieces
    have no margins.)
    """
    cuts = {grid.name: list(_every_cut(graph, grid, len(cluster))) for grid in graph.computed}
    for chosen in product(*cuts.values()):
        yield {layer: cut for layer, cut in zip(cuts, chosen, strict=True) if cut is not None}


def _every_cut(graph: Graph, grid: Grid, machines: int) -> Iterator[Cut | None]:
    if stays_with_scores(graph, grid):
        yield None
    yield from map(Whole, range(machines))
    for count in range(2, machines + 1):
        for owners in permutations(range(machines), count):
            if grid.layer.cuttable:
                yield from (RowSplit(owners, sizes) for sizes in _sizes(grid.n_rows, count))
            if grid.replicable:
                yield Replicated(owners)
            for sizes in _sizes(graph[grid.sources[0]].n_rows, count) if grid.layer.splits_sum else ():
                yield InputSplit(owners, sizes, replicated=True)
                if grid.n_rows >= count:
                    yield InputSplit(owners, sizes)


def _sizes(n_rows: int, count: int) -> Iterator[tuple[int, ...]]:
    """All ways to cut so many rows."""
    for places in combinations(range(1, n_rows), count - 1):
        met = (0, *places, n_rows)
        yield tuple(b - a for a, b in pairwise(met))
