"""One member's numbers, copied to all others directly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from partita.engine.protocol.exchange.algorithm import Algorithm, Link, Route, Weight


@dataclass(frozen=True, slots=True)
class Broadcast(Algorithm):
    """Rank `root` sends its numbers to every other rank: for an `AllGather`, whose ranges are all the root's.

    Bytes sent: `(N - 1) S` by the root, none by others.

    Raises:
        ValueError: `root` is negative.
    """

    root: int = 0

    def __post_init__(self) -> None:
        if self.root < 0:
            raise ValueError(f"root={self.root} is a rank; give 0 or more")

    @override
    def segments(self, machines: Sequence[str]) -> int:
        return 1

    @override
    def route(self, rank: int, segment: int, machines: Sequence[str]) -> Route:
        others = tuple(other for other in range(len(machines)) if other != self.root)
        if rank != self.root:
            return Route(sums_to=self.root, copies_from=self.root)
        return Route(adds=others, copies_to=others)

    @override
    def sent(self, rank: int, machines: Sequence[str], weight: Weight) -> int:
        return weight(0) * (len(machines) - 1) if rank == self.root else 0

    @override
    def seconds(self, machines: Sequence[str], n_bytes: int, link: Link, local: Link | None = None) -> float:
        own = machines[self.root]
        links = [local or link if label == own else link for label in machines]
        del links[self.root]
        return sum(one.seconds(n_bytes, 0) for one in links) + max(
            (one.latency_s for one in links), default=0.0
        )
