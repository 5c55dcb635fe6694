"""The plan that a command was asked for."""

from __future__ import annotations

from pathlib import Path

from partita.engine.cli.loading import UserFile
from partita.partitioner.cluster import Cluster
from partita.partitioner.cuts import Pieces, Whole
from partita.partitioner.partition import partition
from partita.partitioner.plan import Plan


def make_plan(file: UserFile, cluster: Cluster, *, batch: int, cuts: list[str], strategy: str) -> Plan:
    """The plan of the file's network.

    Raises:
        ValueError: a cut is none, or the network cannot be cut so.
    """
    network = file.network()
    return partition(network, cluster, batch=batch, cuts=dict(map(parse_cut, cuts)), strategy=strategy)


def cluster_of(file: Path | None, *, machines: int, threads: int) -> Cluster:
    """What a file describes; without one, so many processes of this machine.

    Raises:
        ValueError: the file has a mistake, or the numbers have.
        OSError: the file cannot be read.
    """
    return Cluster.local(machines, threads=threads) if file is None else Cluster.read(file)


def parse_cut(written: str) -> tuple[str, Pieces | Whole]:
    """`hidden=0,1` or `scores=1`."""
    layer, equals, owners = written.partition("=")
    numbers = owners.split(",")
    if not equals or not layer or not all(number.strip().isdecimal() for number in numbers):
        raise ValueError(
            f"'{written}' is not a cut; write LAYER=MACHINE[,MACHINE...], for example hidden=0,1"
        )
    machines = tuple(int(number) for number in numbers)
    return layer, Whole(machines[0]) if len(machines) == 1 else Pieces(machines)
