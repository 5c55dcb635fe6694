"""All-reduce by a parameter server: one root gathers all vectors, adds them, and sends the sum back.

Source: Chen, Monga, Bengio and Jozefowicz, "Revisiting distributed synchronous SGD", 2016 (backup workers).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from partita.engine.protocol.exchange.algorithm import Algorithm, Link, Route, Weight


@dataclass(frozen=True, slots=True)
class Server(Algorithm):
    """Rank 0 adds the contributions of all ranks, in rank order: `((x[0] + x[1]) + x[2]) + ...`.

    With `backup_workers=b`, a step of N members sums the first `N - b` contributions, its own among them (and
    at least one other), in rank order; the others of that step are dropped. The root decides when the first
    piece of each of them has arrived, and sends with the result whose contributions are not in it. All
    members get the result; the decision about a step waits until all have the one before, so no member is
    more than a step behind.

    Bytes sent: `(N - 1) S` by the root, `S` by every other member.

    Raises:
        ValueError: `backup_workers` is negative.
    """

    backup_workers: int = 0

    def __post_init__(self) -> None:
        if self.backup_workers < 0:
            raise ValueError(f"backup_workers={self.backup_workers} counts members; give 0 or more")

    @override
    def segments(self, machines: Sequence[str]) -> int:
        return 1

    @override
    def route(self, rank: int, segment: int, machines: Sequence[str]) -> Route:
        if rank:
            return Route(sums_to=0, copies_from=0)
        others = tuple(range(1, len(machines)))
        return Route(adds=others, copies_to=others)

    @override
    def sent(self, rank: int, machines: Sequence[str], weight: Weight) -> int:
        return weight(0) if rank else weight(0) * (len(machines) - 1)

    @override
    def seconds(self, machines: Sequence[str], n_bytes: int, link: Link, local: Link | None = None) -> float:
        total = 0.0
        for label in machines[1:]:
            total += (local or link if label == machines[0] else link).s_per_byte * n_bytes
        slowest = link if len(set(machines)) > 1 or local is None else local
        return 2 * (slowest.latency_s * (len(machines) > 1) + total)
