"""Strategies that decide who owns what, one a file.

A strategy takes a graph, a cluster and the cuts given by hand, and gives pieces for every layer.
"""

from collections.abc import Callable

from partita.layers.graph import Graph
from partita.partitioner.cluster import Cluster
from partita.partitioner.cuts import Cuts
from partita.partitioner.ownership import Piece
from partita.partitioner.strategies.balanced import balanced

STRATEGIES: dict[str, Callable[[Graph, Cluster, Cuts], tuple[Piece, ...]]] = {"balanced": balanced}
"""By the name under which `partition` knows them."""

__all__ = ["STRATEGIES", "balanced"]
