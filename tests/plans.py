"""Hypothesis strategies that draw clusters, cuts by hand and whole plans of drawn networks."""

from __future__ import annotations

from hypothesis import strategies as st

from partita.layers import Graph
from partita.partitioner import Cluster, Link, Machine, Pieces, Plan, StepKind, Whole, partition
from tests.networks import networks

kinds = st.sampled_from(
    [StepKind(), StepKind(gradients="whole"), StepKind(norms=True), StepKind(train=False)]
)
"""Every kind of step."""


@st.composite
def clusters(draw: st.DrawFn, *, max_machines: int = 6) -> Cluster:
    """Machines of uneven speed, and a link that may be slow enough to matter."""
    count = draw(st.integers(1, max_machines))
    speeds = draw(st.lists(st.sampled_from([0.3e9, 1e9, 1e9, 2.5e9]), min_size=count, max_size=count))
    link = Link(draw(st.sampled_from([1e-5, 1e-2])), draw(st.sampled_from([1e6, 2e9])))
    return Cluster(tuple(Machine(f"m{n}", flops_per_s=speed) for n, speed in enumerate(speeds)), link)


@st.composite
def cuts(draw: st.DrawFn, graph: Graph, machines: int) -> dict[str, Pieces | Whole]:
    """Cuts by hand for some of the layers: any machines in any order, any sizes."""
    found: dict[str, Pieces | Whole] = {}
    for grid in graph.computed:
        most = min(machines, grid.n_rows) if grid.layer.cuttable else 1
        how = draw(st.sampled_from(["automatic", "whole", "equal", "sized", "sized"]))
        if how == "whole":
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
) -> Plan:
    """A plan of a drawn network, cut by hand and the rest over all machines of a drawn cluster."""
    graph = draw(networks(max_layers=max_layers, losses=losses, local=local, shared=shared))
    cluster = draw(clusters(max_machines=max_machines))
    by_hand = draw(cuts(graph, len(cluster)))
    batch = draw(st.integers(1, max_batch))
    return partition(graph, cluster, batch=batch, cuts=by_hand, precision=precision, strategy="balanced")
