"""`partition`: from a network and a cluster to a plan."""

from __future__ import annotations

from partita.layers.graph import Graph
from partita.layers.network import Network
from partita.partitioner.bare_plan import PRECISIONS
from partita.partitioner.cluster import Cluster
from partita.partitioner.cuts import Cuts, check_cuts
from partita.partitioner.ownership import Ownership
from partita.partitioner.plan import Plan
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
        cuts: cuts by hand for some layers, by name: `Pieces(2)`, `Pieces((0, 2), sizes=(4, 2))`, `Whole(1)`.
        strategy: what decides for the other layers; "balanced" gives each machine operations in proportion to
            its speed.
        precision: "float32" or "float64".

    Raises:
        ValueError: the network is not finished, a cut cannot be, or a part does not fit into memory.
    """
    graph = network.graph() if isinstance(network, Network) else network
    if batch < 1:
        raise ValueError(f"a batch of {batch} examples cannot be played; ask for at least 1")
    if precision not in PRECISIONS:
        raise ValueError(f"there is no precision {precision!r}; choose one of {', '.join(PRECISIONS)}")
    if strategy not in STRATEGIES:
        raise ValueError(f"there is no strategy {strategy!r}; choose one of {', '.join(STRATEGIES)}")
    check_cuts(graph, cuts or {})
    pieces = STRATEGIES[strategy](graph, cluster, cuts or {})
    plan = Plan(graph, cluster, batch, Ownership(graph, len(cluster), pieces), precision)
    for m, machine in enumerate(cluster.machines):
        if machine.memory_bytes is not None and plan.memory_bytes(m) > machine.memory_bytes:
            raise ValueError(
                f"the part of machine '{machine.name}' takes {readable_bytes(plan.memory_bytes(m))} of its "
                f"{readable_bytes(machine.memory_bytes)}; use more machines or a smaller batch"
            )
    return plan
