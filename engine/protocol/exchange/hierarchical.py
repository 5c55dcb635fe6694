"""Hierarchical all-reduce: one copy of the vector crosses between machines, whatever the number of members.

Source: Jia et al., "Highly scalable deep learning training system with mixed-precision: training ImageNet in
four minutes", 2018 (section 3.3: reduce inside groups, all-reduce among their leaders, broadcast inside).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from partita.engine.protocol.exchange.algorithm import Algorithm, Link, Route, Weight
from partita.engine.protocol.exchange.ring import Ring


@dataclass(frozen=True, slots=True)
class Hierarchical(Algorithm):
    """The lowest rank of each machine leads it. Leaders form a `Ring`, and each sums and copies inside.

    Order of additions: a leader adds the vectors of its machine's other members to its own, in rank order,
    then the sum that the ring brings, as in `Ring` over the leaders.

    Bytes sent with M machines: a leader of m members sends `2 S` less two segments to the next leader
    (exactly `2 (M - 1) / M S` where M divides the length), and `S` to each of its m - 1 members, each of
    which sends `S`. Members without a machine's label are machines of their own: then it is a ring.
    """

    @override
    def segments(self, machines: Sequence[str]) -> int:
        return len(set(machines))

    @override
    def route(self, rank: int, segment: int, machines: Sequence[str]) -> Route:
        inside = [other for other, label in enumerate(machines) if label == machines[rank]]
        leader, others = inside[0], tuple(inside[1:])
        if rank != leader:
            return Route(sums_to=leader, copies_from=leader)
        leaders = _leaders(machines)
        ring = Ring().route(leaders.index(rank), segment, _labels(leaders))
        return Route(
            adds=others + tuple(leaders[place] for place in ring.adds),
            sums_to=None if ring.sums_to is None else leaders[ring.sums_to],
            copies_from=None if ring.copies_from is None else leaders[ring.copies_from],
            copies_to=tuple(leaders[place] for place in ring.copies_to) + others,
        )

    @override
    def sent(self, rank: int, machines: Sequence[str], weight: Weight) -> int:
        whole = sum(map(weight, range(self.segments(machines))))
        inside = [other for other, label in enumerate(machines) if label == machines[rank]]
        if rank != inside[0]:
            return whole
        leaders = _leaders(machines)
        return (len(inside) - 1) * whole + Ring().sent(leaders.index(rank), _labels(leaders), weight)

    @override
    def seconds(self, machines: Sequence[str], n_bytes: int, link: Link, local: Link | None = None) -> float:
        largest = max(machines.count(label) for label in set(machines))
        inside = 2 * (largest - 1) * (local or link).seconds(n_bytes)
        return inside + Ring().seconds(sorted(set(machines)), n_bytes, link)


def _leaders(machines: Sequence[str]) -> list[int]:
    """The lowest rank of each machine, ascending."""
    lowest: dict[str, int] = {}
    for rank, label in enumerate(machines):
        lowest.setdefault(label, rank)
    return list(lowest.values())


def _labels(leaders: Sequence[int]) -> list[str]:
    return [str(leader) for leader in leaders]
