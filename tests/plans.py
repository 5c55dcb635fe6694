"""Hypothesis strategies that draw clusters, cuts by hand and whole plans of drawn networks."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from partita.layers import Graph, Grid
from partita.partitioner import Cluster, Link, Machine, Pieces, Plan, StepKind, Tiles, Whole, partition
from partita.partitioner.cuts import Cut
from tests.networks import networks

kinds = st.sampled_from(
    [StepKind(), StepKind(gradients="whole"), StepKind(norms=True), StepKind(train=False)]
)
"""Every kind of step."""


@st.composite
def clusters(draw: st.DrawFn, *, max_machines: int = 6, min_machines: int = 1) -> Cluster:
    """Machines of uneven speed, and a link that may be slow enough to matter."""
    count = draw(st.integers(min_machines, max_machines))
    speeds = draw(st.lists(st.sampled_from([0.3e9, 1e9, 1e9, 2.5e9]), min_size=count, max_size=count))
    link = Link(draw(st.sampled_from([1e-5, 1e-2])), draw(st.sampled_from([1e6, 2e9])))
    return Cluster(tuple(Machine(f"m{n}", flops_per_s=speed) for n, speed in enumerate(speeds)), link)


@st.composite
def cuts(draw: st.DrawFn, graph: Graph, machines: int, *, tiles: bool = False) -> dict[str, Cut]:
    """Cuts by hand for some of the layers: any machines in any order, any sizes; with `tiles`, most pictures
    into tiles.
    """
    found: dict[str, Cut] = {}
    for grid in graph.computed:
        most = min(machines, grid.n_rows) if grid.layer.cuttable else 1
        hows = ["automatic", "whole", "equal", "sized", "sized"]
        hows += ["tiles"] * (12 * (tiles and grid.why_no_tiles() is None))
        how = draw(st.sampled_from(hows))
        if how == "tiles":
            found[grid.name] = draw(tilings(grid, machines))
        elif how == "whole":
            found[grid.name] = Whole(draw(st.integers(0, machines - 1)))
        elif how != "automatic":
            count = draw(st.integers(1, most))
            owners = tuple(draw(st.permutations(range(machines)))[:count])
            places = st.sets(st.integers(1, grid.n_rows - 1), min_size=count - 1, max_size=count - 1)
            met = [0, *(sorted(draw(places)) if count > 1 else ()), grid.n_rows]
            sizes = tuple(met[k + 1] - met[k] for k in range(count))
            found[grid.name] = Pieces(owners, sizes if how == "sized" else None)
    return found


@st.composite
def tilings(draw: st.DrawFn, grid: Grid, machines: int) -> Tiles:
    """A picture cut into a grid of tiles of any sizes, on any machines in any order."""
    most = min(machines, grid.shape[1])
    across = draw(st.integers(min(2, most), most))
    down = draw(st.integers(1, min(machines // across, grid.shape[0])))
    owners = tuple(draw(st.permutations(range(machines)))[: down * across])
    sizes = []
    for count, extent in zip((down, across), grid.shape[:2], strict=True):
        places = st.sets(st.integers(1, extent - 1), min_size=count - 1, max_size=count - 1)
        met = [0, *(sorted(draw(places)) if count > 1 else ()), extent]
        sizes.append(tuple(b - a for a, b in pairwise(met)))
    return Tiles(owners, (down, across), (sizes[0], sizes[1]) if draw(st.booleans()) else None)


@st.composite
def plans(
    draw: st.DrawFn,
    *,
    max_layers: int = 7,
    max_machines: int = 6,
    losses: bool = True,
    max_batch: int = 3,
    precision: str = "float32",
    local: bool = False,
    shared: bool = False,
    tiles: bool = False,
) -> Plan:
    """A plan of a drawn network, cut by hand and automatically over a drawn cluster; with `tiles`, pictures
    mostly into tiles.
    """
    graph = draw(networks(max_layers=max_layers, losses=losses, local=local, shared=shared, wide=tiles))
    cluster = draw(clusters(max_machines=max_machines, min_machines=2 if tiles else 1))
    by_hand = draw(cuts(graph, len(cluster), tiles=tiles))
    batch = draw(st.integers(1, max_batch))
    return partition(graph, cluster, batch=batch, cuts=by_hand, precision=precision)
