"""The links between replicas, as the alpha-beta model of exchanges takes them from a plan's cluster.

A cluster has the machines of one replica. The same machine of another replica is assumed to be as far away as
another host of the cluster; which replicas share a computer is known when they run.
"""

from __future__ import annotations

from partita.engine.numerics import master
from partita.engine.protocol.exchange import Fastest, Link
from partita.engine.protocol.exchange.group import CHUNK_BYTES
from partita.engine.runtime.buffers import layout_of
from partita.partitioner.cluster.link import Link as ClusterLink
from partita.partitioner.plan import Plan


def link_of(link: ClusterLink) -> Link:
    """Returns latency and seconds for each byte of a link: those of a small message, and of a whole piece.

    A message's time is that of its sender, of the link and of its receiver, one after the other.
    """
    small, large = (sum(link.times(n_bytes)) for n_bytes in (1, CHUNK_BYTES))
    return Link(link.latency_s + small, (large - small) / (CHUNK_BYTES - 1))


def fastest_of(plan: Plan) -> Fastest:
    """Returns the fastest all-reduce of the largest gradient that a machine of the plan has."""
    cluster, layout = plan.cluster, layout_of(plan, shards=1)
    size = max(layout.machine_size(machine) for machine in range(len(cluster)))
    apart = [link for link in (cluster.link, *(one.link for one in cluster.between)) if link is not None]
    n_bytes = size * master(plan.precision).itemsize
    slowest = max(map(link_of, apart), key=lambda link: link.seconds(n_bytes))
    return Fastest(n_bytes, slowest, link_of(cluster.memory))
