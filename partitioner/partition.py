"""`partition`: from a network and a cluster to a plan."""

from __future__ import annotations

from dataclasses import replace

from partita.layers.checks import check_whole
from partita.layers.graph import Graph
from partita.layers.network import Network
from partita.layers.text import readable_bytes
from partita.partitioner.assign.cuts import Cuts, check_cuts, plain
from partita.partitioner.cluster.cluster import Cluster
from partita.partitioner.cluster.processor import processor
from partita.partitioner.cluster.products import products_for
from partita.partitioner.gc_paused import gc_paused
from partita.partitioner.ir.sizes import PRECISIONS
from partita.partitioner.plan import Plan
from partita.partitioner.search.fitting import what_would_fit
from partita.partitioner.search.strategies import STRATEGIES
from partita.partitioner.search.task import Task


def partition(
    network: Network | Graph,
    cluster: Cluster,
    *,
    batch: int,
    cuts: Cuts | None = None,
    strategy: str = "automatic",
    precision: str = "float32",
    micro_batches: int | None = None,
) -> Plan:
    """Cuts one replica of a network over the machines of a cluster.

    Args:
        network: the network as declared.
        cluster: the machines of one replica; a driver multiplies them.
        batch: examples in a minibatch.
        cuts: cuts by hand for some layers, by name: `RowSplit(2)`, `RowSplit((0, 2), sizes=(4, 2))`,
            `Whole(1)`, `Tiles(4, across=(2, 2))`, `InputSplit(2)`, `Replicated(2)`.
        strategy: strategy for the other layers: "automatic" searches for the shortest predicted step, on all
            machines or some; "balanced" cuts each over all machines, by operations and speeds; "layers" keeps
            them whole, one run of them after the other on each machine.
        precision: "float32", "float64", or "bfloat16" or "float16" (whose parameters and sums are float32).
        micro_batches: number of equal micro-batches in a minibatch. They follow one another through the
            machines of a horizontal cut, which so work at the same time; the update is the same. If not
            given, the automatic strategy chooses, and others use one.

    Raises:
        ValueError: the network is not finished or cannot be trained, a cut is impossible, the micro-batches
            do not divide the batch, or a part does not fit into memory.
    """
    graph = _graph_of(network)
    if not isinstance(cluster, Cluster):
        raise ValueError(f"the cluster is {cluster!r}; write for example Cluster.local(2)")
    batch = check_whole(batch, "the number of examples in a batch is")
    if precision not in PRECISIONS:
        raise ValueError(f"there is no precision {precision!r}; choose one of {', '.join(PRECISIONS)}")
    if precision == "float16":
        _check_forwards(graph)
    if strategy not in STRATEGIES:
        raise ValueError(f"there is no strategy {strategy!r}; choose one of {', '.join(STRATEGIES)}")
    if micro_batches is not None:
        micro_batches = check_whole(micro_batches, "the number of micro-batches is")
    cuts = {} if cuts is None else cuts
    check_cuts(graph, cuts)
    cuts = {layer: plain(cut) for layer, cut in cuts.items()}
    task = Task(graph, cluster, batch, precision, cuts, micro_batches)
    with gc_paused():
        plan = replace(STRATEGIES[strategy](task), products=products_for(processor()))
        _check_memory(plan, task, strategy)
    return plan


def _graph_of(network: object) -> Graph:
    """Checks that the network is finished."""
    if not isinstance(network, Network | Graph):
        name = getattr(network, "__name__", "")
        hint = f"call it, {name}()" if name and callable(network) else "give a Network or its graph()"
        raise ValueError(f"the network to cut is {name or repr(network)}; {hint}")
    return network.graph() if isinstance(network, Network) else network


def _check_forwards(graph: Graph) -> None:
    """Checks that no layer is computed by compiled functions of a node, which have no float16."""
    for grid in graph.computed:
        if not grid.layer.has_forward:
            raise ValueError(
                f"{grid.layer.kind} '{grid.name}' is computed by its node definition, which has no float16; "
                'write its `forward`, or take precision="bfloat16"'
            )


def _check_memory(plan: Plan, task: Task, strategy: str) -> None:
    for m, limit in task.tight_limits.items():
        found = plan.memory_bytes(m)
        if found > limit:
            raise ValueError(
                f"the part of machine '{plan.cluster.machines[m].name}' takes {readable_bytes(found)} of its "
                f"{readable_bytes(limit)}; {what_would_fit(task, strategy)}"
            )
