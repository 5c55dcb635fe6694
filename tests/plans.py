"""Hypothesis strategies that draw clusters, cuts by hand and whole plans of drawn networks."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from hypothesis import strategies as st

from partita.layers import Conv2D, Graph, Grid
from partita.partitioner import (
    Between,
    Cluster,
    InputSplit,
    Link,
    Machine,
    MessageTimes,
    Plan,
    Replicated,
    RowSplit,
    StepKind,
    Tiles,
    Whole,
    partition,
)
from partita.partitioner.assign.cuts import Cut
from tests.networks import networks

kinds = st.sampled_from(
    [StepKind(), StepKind(gradients="whole"), StepKind(norms=True), StepKind(train=False)]
)
"""Every kind of step."""
flowing = st.builds(lambda kind, overlap: replace(kind, overlap=overlap), kinds, st.integers(1, 5))
"""Every kind of step, also of several minibatches."""


@st.composite
def tables(draw: st.DrawFn) -> tuple[MessageTimes, ...]:
    """Times of messages at a few sizes, in steps and in leaps."""
    sizes = sorted(draw(st.sets(st.sampled_from([1, 64, 1000, 1 << 16, 1 << 20, 1 << 24]), min_size=2)))
    more = st.sampled_from([0.0, 1e-6, 1e-5, 3e-3])
    steps = draw(st.lists(st.tuples(more, more, more), min_size=len(sizes), max_size=len(sizes)))
    times = accumulate(steps, lambda a, b: (a[0] + b[0], a[1] + b[1], a[2] + b[2]))
    return tuple(MessageTimes(size, *each) for size, each in zip(sizes, times, strict=True))


links = st.one_of(
    st.builds(Link, st.sampled_from([1e-5, 1e-2]), st.sampled_from([1e6, 2e9])),
    st.builds(lambda latency_s, table: Link(latency_s, table=table), st.sampled_from([0.0, 1e-3]), tables()),
)
"""Links that are straight lines, and links with a table of messages."""


@st.composite
def clusters(draw: st.DrawFn, *, max_machines: int = 6, min_machines: int = 1) -> Cluster:
    """Machines of uneven speed, and links that may be slow enough to matter."""
    count = draw(st.integers(min_machines, max_machines))
    speeds = draw(st.lists(st.sampled_from([0.3e9, 1e9, 1e9, 2.5e9]), min_size=count, max_size=count))
    machines = tuple(Machine(f"m{n}", flops_per_s=speed) for n, speed in enumerate(speeds))
    between = ()
    if count > 1 and draw(st.booleans()):
        one, other = draw(st.permutations([machine.name for machine in machines]))[:2]
        between = (Between(one, other, draw(links), one_way=draw(st.booleans())),)
    return Cluster(machines, draw(links), between)


@st.composite
def cuts(draw: st.DrawFn, graph: Graph, machines: int, *, tiles: bool = False) -> dict[str, Cut]:
    """Cuts by hand for some of the layers: any machines in any order, any sizes; with `tiles`, most pictures
    into tiles, and then no copies of pictures.
    """
    found: dict[str, Cut] = {}
    for grid in graph.computed:
        most = min(machines, grid.n_rows) if grid.layer.cuttable else 1
        copies = grid.replicable and not (tiles and grid.is_picture)
        ways = ["automatic", "whole", "equal", "sized", "sized"]
        ways += ["replicated", *["halo"] * (most > 1)] * copies
        ways += ["inputs", "summed"] * (grid.layer.splits_sum and not (tiles and _near_pictures(graph, grid)))
        ways += ["tiles"] * (12 * (tiles and grid.tiling_rejection() is None))
        how = draw(st.sampled_from(ways))
        if how == "tiles":
            found[grid.name] = draw(tilings(grid, machines))
        elif how == "whole":
            found[grid.name] = Whole(draw(st.integers(0, machines - 1)))
        elif how == "replicated":
            found[grid.name] = Replicated(draw(owners(machines)))
        elif how in ("inputs", "summed"):
            found[grid.name] = draw(input_splits(graph, grid, machines, replicated=how == "summed"))
        elif how != "automatic":
            on = draw(owners(machines, most=most))
            sizes = None if how == "equal" else draw(cut_sizes(grid.n_rows, len(on)))
            found[grid.name] = RowSplit(on, sizes, halo=draw(st.integers(1, 3)) if how == "halo" else 0)
    return found


def _near_pictures(graph: Graph, grid: Grid) -> bool:
    """Whether a layer is a picture or has one as an input."""
    return any(one.is_picture for one in (grid, *(graph[source] for source in grid.sources)))


@st.composite
def tilings(draw: st.DrawFn, grid: Grid, machines: int) -> Tiles:
    """A picture cut into a grid of tiles of any sizes, on any machines in any order."""
    most = min(machines, grid.shape[1])
    across = draw(st.integers(min(2, most), most))
    down = draw(st.integers(1, min(machines // across, grid.shape[0])))
    owners = tuple(draw(st.permutations(range(machines)))[: down * across])
    sizes = draw(cut_sizes(grid.shape[0], down)), draw(cut_sizes(grid.shape[1], across))
    return Tiles(owners, (down, across), sizes if draw(st.booleans()) else None)


@st.composite
def owners(draw: st.DrawFn, machines: int, *, most: int | None = None) -> tuple[int, ...]:
    """Some machines in any order."""
    count = draw(st.integers(1, machines if most is None else most))
    return tuple(draw(st.permutations(range(machines)))[:count])


@st.composite
def cut_sizes(draw: st.DrawFn, n_rows: int, count: int) -> tuple[int, ...]:
    """Rows of so many pieces."""
    places = st.sets(st.integers(1, n_rows - 1), min_size=count - 1, max_size=count - 1)
    met = [0, *(sorted(draw(places)) if count > 1 else ()), n_rows]
    return tuple(met[k + 1] - met[k] for k in range(count))


@st.composite
def input_splits(draw: st.DrawFn, graph: Graph, grid: Grid, machines: int, *, replicated: bool) -> InputSplit:
    """A cut by inputs of any sizes, or along the pieces of the input."""
    n_inputs = graph[grid.sources[0]].n_rows
    on = draw(owners(machines, most=min(machines, n_inputs, machines if replicated else grid.n_rows)))
    sizes = draw(st.one_of(st.none(), cut_sizes(n_inputs, len(on))))
    return InputSplit(on, sizes, replicated=replicated)


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
    micro_batches: int = 1,
    tiles: bool = False,
    tied: bool = False,
) -> Plan:
    """A plan of a drawn network, cut by hand and the rest over all machines of a drawn cluster.

    With `micro_batches` it may take its minibatches in so many portions at most; with `tiles` most of its
    pictures are cut into tiles; if `tied`, layers use the parameters of others.
    """
    graph = draw(
        networks(max_layers=max_layers, losses=losses, local=local, shared=shared, wide=tiles, tied=tied)
    )
    cluster = draw(clusters(max_machines=max_machines, min_machines=2 if tiles else 1))
    by_hand = draw(cuts(graph, len(cluster), tiles=tiles))
    portions = draw(st.integers(1, micro_batches))
    many = local and any(
        isinstance(grid.layer, Conv2D) for grid in graph.grids
    )  # else PyTorch's bits are not ours
    batch = portions * (16 if many else draw(st.integers(1, max_batch)))
    return partition(
        graph,
        cluster,
        batch=batch,
        cuts=by_hand,
        precision=precision,
        strategy="balanced",
        micro_batches=portions,
    )
