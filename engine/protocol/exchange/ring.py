"""Ring all-reduce: the members send to their successors only, each the same number of bytes.

Sources: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J.
Parallel Distrib. Comput. 69 (2009), section 4; Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005), section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from partita.engine.protocol.exchange.algorithm import Algorithm, Link, Route, Weight


@dataclass(frozen=True, slots=True)
class Ring(Algorithm):
    """N segments; segment s is summed from rank s + 1 round to rank s, and copied from there round again.

    Order of additions in segment s: `((x[s + 1] + x[s + 2]) + ...) + x[s]`, ranks modulo N.

    Bytes sent by a member: `2 S` less its own segment and its successor's: exactly `2 (N - 1) / N S` where N
    divides the length. No algorithm sends fewer (Patarasuk and Yuan, 2009). It takes `2 (N - 1)` messages,
    one after the other, so short vectors are faster in a tree, see `Tree`.
    """

    @property
    @override
    def balanced(self) -> bool:
        return True

    @override
    def segments(self, machines: Sequence[str]) -> int:
        return len(machines)

    @override
    def route(self, rank: int, segment: int, machines: Sequence[str]) -> Route:
        n = len(machines)
        if n == 1:
            return Route()
        behind, ahead = (rank - 1) % n, (rank + 1) % n
        first, root = (segment + 1) % n, segment
        return Route(
            adds=() if rank == first else (behind,),
            sums_to=None if rank == root else ahead,
            copies_from=None if rank == root else behind,
            copies_to=() if ahead == root else (ahead,),
        )

    @override
    def sent(self, rank: int, machines: Sequence[str], weight: Weight) -> int:
        n = len(machines)
        if n == 1:
            return 0
        return 2 * sum(map(weight, range(n))) - weight(rank) - weight((rank + 1) % n)

    @override
    def seconds(self, machines: Sequence[str], n_bytes: int, link: Link, local: Link | None = None) -> float:
        n = len(machines)
        slowest = link if len(set(machines)) > 1 or local is None else local
        return slowest.seconds(2 * (n - 1) / n * n_bytes, messages=2 * (n - 1))
