"""Tree all-reduce: sums go up a binomial tree to rank 0, the result comes down the same tree.

Source: Thakur, Rabenseifner and Gropp (2005), see `ring`, section 4 (binomial tree reduce, then broadcast).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from partita.engine.protocol.exchange.algorithm import Algorithm, Link, Route, Weight


@dataclass(frozen=True, slots=True)
class Tree(Algorithm):
    """One segment, in a binomial tree over the ranks: rank r has the children r + 1, r + 2, r + 4 ...

    Order of additions: each rank adds its children's sums to its own numbers in ascending order. That is the
    pairwise sum `((x[0] + x[1]) + (x[2] + x[3])) + ...`, whose rounding error grows with log N only.

    Bytes sent by a member: `S` to its parent and `S` to each child. An exchange takes `2 ceil(log2 N)`
    messages, one after the other: fewer than a ring's `2 (N - 1)`, each with the whole vector. So short
    vectors are faster in a tree, and long ones in a ring; `crossover_bytes` is where they are equal.
    """

    @override
    def segments(self, machines: Sequence[str]) -> int:
        return 1

    @override
    def route(self, rank: int, segment: int, machines: Sequence[str]) -> Route:
        children = _children(rank, len(machines))
        parent = rank & (rank - 1) if rank else None
        return Route(adds=children, sums_to=parent, copies_from=parent, copies_to=tuple(reversed(children)))

    @override
    def sent(self, rank: int, machines: Sequence[str], weight: Weight) -> int:
        return weight(0) * (len(_children(rank, len(machines))) + (rank > 0))

    @override
    def seconds(self, machines: Sequence[str], n_bytes: int, link: Link, local: Link | None = None) -> float:
        slowest = link if len(set(machines)) > 1 or local is None else local
        return 2 * _levels(len(machines)) * slowest.seconds(n_bytes)


def crossover_bytes(members: int, link: Link) -> float:
    """Returns the size of a vector (bytes) from which a ring is faster than a tree, by the alpha-beta model.

    Equal times, `2 (N - 1) a + 2 (N - 1) / N S b = 2 L (a + S b)` with `L = ceil(log2 N)`, give
    `S = a (N - 1 - L) / (b (L - (N - 1) / N))`. For up to 3 members it is 0: a ring is never slower.
    """
    levels, steps = _levels(members), members - 1
    saved = levels - steps / members
    if saved <= 0:
        return 0.0
    return link.latency_s * (steps - levels) / (link.s_per_byte * saved)


def _levels(members: int) -> int:
    return (members - 1).bit_length()


def _children(rank: int, members: int) -> tuple[int, ...]:
    """Ranks whose lowest set bit, taken away, leaves this rank; ascending."""
    found, bit = [], 1
    while rank + bit < members and not rank & bit:
        found.append(rank + bit)
        bit <<= 1
    return tuple(found)
