"""The needs of the hosts of a run, by its plan: resources, neighbours, and the workers that a plan names."""

from __future__ import annotations

from math import prod
from typing import Final

from partita.engine.protocol.names import Topology
from partita.engine.protocol.pool.messages import Need
from partita.engine.protocol.pool.resources import Resources
from partita.partitioner.cluster.cluster import Cluster
from partita.partitioner.plan import Plan

_MESSAGE_BYTES: Final = 1 << 18
"""Size of the message by which near workers are told from far ones."""


def needs_of(plan: Plan, topology: Topology) -> tuple[Need, ...]:
    """Returns what the hosts of a run need.

    Parts need the threads, device and memory of their machine in the plan. The first replica goes to the
    workers that the plan's machines stand for; the others too if there is room, or else to workers of their
    kind, or to near ones. Shards need the memory of their parameters, and a machine each if there are
    enough; so do their backups, and each another one than its shard.
    """
    machines = plan.cluster.machines
    has = [
        Resources(
            cpu=0 if machine.device != "cpu" else machine.threads,
            gpu=0 if machine.device == "cpu" else 1,
            memory=_memory_of(plan, number),
        )
        for number, machine in enumerate(machines)
    ]
    workers = [preferred_workers(plan.cluster, number) for number in range(len(machines))]
    parts = [
        Need(
            host=name,
            resources=has[number],
            group=f"replica {replica} on {machines[number].site}",
            workers=workers[number],
            strict=replica == 0 and bool(workers[number]),
        )
        for replica in range(topology.replicas)
        for number, name in enumerate(topology.parts(replica))
    ]
    held = 2 * 4 * sum(prod(p.shape) for p in plan.graph.parameters.values()) // max(topology.shards, 1)
    shards = [
        Need(host=name, resources=Resources(memory=held), group="shards", spread=True)
        for name in topology.shard_names
    ]
    backups = [
        Need(host=name, resources=Resources(memory=held), group="backups", spread=True)
        for name in topology.backup_names
    ]
    return (*parts, *shards, *backups)


def preferred_workers(cluster: Cluster, machine: int) -> tuple[str, ...]:
    """Returns names of workers for a machine's part, the best first; none if the machine stands for none.

    First its own, then those of its kind, then others; of each, the nearest by the cluster's links first.
    """
    own = cluster.machines[machine]
    if not own.worker:
        return ()

    def distance(other: int) -> tuple[bool, float, str]:
        link = cluster.link_between(machine, other)
        alike = cluster.kinds[other] == cluster.kinds[machine]
        there = cluster.machines[other].worker
        return not alike, sum(link.times(_MESSAGE_BYTES)) + link.latency_s, there

    others = (m for m, one in enumerate(cluster.machines) if one.worker not in ("", own.worker))
    names = (cluster.machines[m].worker for m in sorted(others, key=distance))
    return (own.worker, *dict.fromkeys(names))


def _memory_of(plan: Plan, machine: int) -> int:
    """Returns the bytes that a plan predicts for a machine; 0 where it cannot train, and so cannot say."""
    try:
        return plan.memory_bytes(machine)
    except ValueError:
        return 0
