"""`partition`: from a network and a cluster to a plan."""

from __future__ import annotations

from partita.layers.checks import check_whole
from partita.layers.graph import Graph
from partita.layers.network import Network
from partita.partitioner.cluster import Cluster
from partita.partitioner.cuts import Cuts, check_cuts
from partita.partitioner.ownership import Ownership
from partita.partitioner.plan import Plan
from partita.partitioner.sizes import PRECISIONS
from partita.partitioner.strategies import STRATEGIES
from partita.partitioner.table import readable_bytes


def partition(
    network: Network | Graph,
    cluster: Cluster,
    *,
    batch: int,
    cuts: Cuts | None = None,
    strategy: str = "balanced",
    precision: str = "float32",
) -> Plan:
    """Cuts one replica of a network over the machines of a cluster.

    Args:
        network: as declared.
        cluster: the machines of one replica; a driver multiplies them.
        batch: examples in a minibatch.
        cuts: cuts by hand for some layers, by name: `Pieces(2)`, `Pieces((0, 2), sizes=(4, 2))`, `Whole(1)`,
            `ByInputs(2)`, `Repeated(2)`.
        strategy: what decides for the other layers; "balanced" gives each machine operations in proportion to
            its speed.
        precision: "float32", "float64" or "bfloat16" (whose parameters and sums are float32).

    Raises:
        ValueError: the network is not finished or cannot be trained, a cut cannot be, or a part does not fit
            into memory.
    """
    graph = _graph_of(network)
    if not isinstance(cluster, Cluster):
        raise ValueError(f"the cluster is {cluster!r}; write for example Cluster.local(2)")
    batch = check_whole(batch, "the number of examples in a batch is")
    if precision not in PRECISIONS:
        raise ValueError(f"there is no precision {precision!r}; choose one of {', '.join(PRECISIONS)}")
    if strategy not in STRATEGIES:
        raise ValueError(f"there is no strategy {strategy!r}; choose one of {', '.join(STRATEGIES)}")
    cuts = {} if cuts is None else cuts
    check_cuts(graph, cuts)
    pieces = STRATEGIES[strategy](graph, cluster, cuts)
    plan = Plan(graph, cluster, batch, Ownership(graph, len(cluster), pieces), precision)
    _check_memory(plan)
    return plan


def _graph_of(network: object) -> Graph:
    """The finished network, if it can be played: each layer that errors must pass has a way down."""
    if not isinstance(network, Network | Graph):
        name = getattr(network, "__name__", "")
        hint = f"call it, {name}()" if name and callable(network) else "give a Network or its graph()"
        raise ValueError(f"the network to cut is {name or repr(network)}; {hint}")
    graph = network.graph() if isinstance(network, Network) else network
    for grid in graph.computed if graph.losses else ():
        definition = grid.layer.definition
        if grid.name in graph.needs_error and definition is not None and definition.downward is None:
            raise ValueError(
                f"{grid.layer.kind} '{grid.name}' has no downward function, so it cannot be trained; "
                "give it one, or use the network without a loss"
            )
    return graph


def _check_memory(plan: Plan) -> None:
    for m, machine in enumerate(plan.cluster.machines):
        if machine.memory_bytes is not None and plan.memory_bytes(m) > machine.memory_bytes:
            raise ValueError(
                f"the part of machine '{machine.name}' takes {readable_bytes(plan.memory_bytes(m))} of its "
                f"{readable_bytes(machine.memory_bytes)}; use more machines or a smaller batch"
            )
