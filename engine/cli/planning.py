"""The plan that a command was asked for."""

from __future__ import annotations

from pathlib import Path

from partita.engine.cli.loading import UserFile
from partita.engine.drivers.phases import Phases
from partita.layers.text import counted
from partita.partitioner.assign.cut_text import parse_cut
from partita.partitioner.cluster.cluster import Cluster
from partita.partitioner.partition import partition
from partita.partitioner.plan import Plan


def make_plan(
    file: UserFile,
    cluster: Cluster,
    *,
    batch: int,
    cuts: list[str],
    strategy: str,
    micro_batches: int | None = None,
    precision: str = "float32",
) -> Plan:
    """The plan of the file's network.

    Raises:
        ValueError: a cut is none, or the network cannot be cut so.
    """
    network = file.network()
    with Phases() as tell:
        tell(f"planning {network.name} for {counted(len(cluster), 'machine')}")
        return partition(
            network,
            cluster,
            batch=batch,
            cuts=dict(map(parse_cut, cuts)),
            strategy=strategy,
            micro_batches=micro_batches,
            precision=precision,
        )


def cluster_of(file: Path | None, *, machines: int, threads: int) -> Cluster:
    """What a file describes; without one, so many processes of this machine.

    Raises:
        ValueError: the file has a mistake, or the numbers have.
        OSError: the file cannot be read.
    """
    return Cluster.local(machines, threads=threads) if file is None else Cluster.read(file)
