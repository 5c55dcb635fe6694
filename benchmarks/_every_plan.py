"""Small random networks and clusters, and every possible plan of them: what a search is measured against."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import combinations, pairwise, permutations, product

from partita.layers import (
    Add,
    Dense,
    LocallyConnected2D,
    MaxPool2D,
    Network,
    SoftmaxCrossEntropy,
    SquaredError,
)
from partita.layers.graph import Graph, Grid
from partita.layers.states import States
from partita.partitioner.cluster import Cluster, Link, Machine
from partita.partitioner.cuts import ByInputs, Cut, Pieces, Repeated, Whole
from partita.partitioner.settle import stays_with_scores


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
        states = net.input("x", shape=draw.randint(20, 4000))
    placed: list[States] = []
    for n in range(draw.randint(1, 3)):
        states = Dense(draw.randint(2, 5), name=f"dense{n}")(states)
        alike = [other for other in placed if other.shape == states.shape]
        if alike and draw.random() < 0.5:
            states = Add(name=f"add{n}")(states, draw.choice(alike))
        placed.append(states)
    loss = draw.choice([SoftmaxCrossEntropy, SquaredError])
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
    """How many there are."""
    return math.prod(_n_cuts(graph, grid, len(cluster)) for grid in graph.computed)


def _n_cuts(graph: Graph, grid: Grid, machines: int) -> int:
    if stays_with_scores(graph, grid):
        return 1 + machines
    most = min(machines, grid.n_rows) if grid.layer.cuttable else 1
    return sum(math.perm(machines, k) * math.comb(grid.n_rows - 1, k - 1) for k in range(1, most + 1))


def every_plan(graph: Graph, cluster: Cluster, *, by_rows: bool = True) -> Iterator[dict[str, Cut]]:
    """Every layer on every machines in every order with every boundary; a loss on any, or with its scores.

    Without `by_rows`, dense layers are also cut along the pieces of their input, and losses repeated.
    """
    cuts = {grid.name: list(_every_cut(graph, grid, len(cluster))) for grid in graph.computed}
    for grid in graph.computed if not by_rows else ():
        cuts[grid.name] += _others(graph, grid, len(cluster))
    for chosen in product(*cuts.values()):
        yield {layer: cut for layer, cut in zip(cuts, chosen, strict=True) if cut is not None}


def _every_cut(graph: Graph, grid: Grid, machines: int) -> Iterator[Cut | None]:
    if stays_with_scores(graph, grid):
        yield None
        most = 1
    else:
        most = min(machines, grid.n_rows) if grid.layer.cuttable else 1
    yield from map(Whole, range(machines))
    for count in range(2, most + 1):
        for owners in permutations(range(machines), count):
            for places in combinations(range(1, grid.n_rows), count - 1):
                met = (0, *places, grid.n_rows)
                yield Pieces(owners, tuple(b - a for a, b in pairwise(met)))


def _others(graph: Graph, grid: Grid, machines: int) -> Iterator[Cut]:
    """Cuts that give rows to several machines, or a row's sum."""
    for count in range(2, machines + 1):
        if grid.name in graph.losses:
            yield from map(Repeated, combinations(range(machines), count))
        for owners in permutations(range(machines), count) if grid.layer.splits_sum else ():
            yield ByInputs(owners, repeated=True)
            if grid.n_rows >= count:
                yield ByInputs(owners)
