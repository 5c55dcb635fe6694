"""The all-reduce algorithm that is fastest by the alpha-beta model, for a vector and places of members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from partita.engine.protocol.exchange.algorithm import Algorithm, Link, Route, Weight
from partita.engine.protocol.exchange.hierarchical import Hierarchical
from partita.engine.protocol.exchange.ring import Ring
from partita.engine.protocol.exchange.tree import Tree

_CANDIDATES: Final[tuple[Algorithm, ...]] = (Ring(), Tree(), Hierarchical())
"""Algorithms to choose from; the first of equal ones is taken, which sends fewer bytes in all."""


def fastest(machines: Sequence[str], n_bytes: int, link: Link, local: Link | None = None) -> Algorithm:
    """Returns the algorithm with the least `Algorithm.seconds`.

    Between two members a ring wins, for short vectors of many a tree, and where computers have several
    members each and are far from each other, the hierarchy.

    Args:
        machines: a label of the computer of each member, by rank.
        n_bytes: size of the vector.
        link: between members of different computers.
        local: between members of one computer; None: as `link`.
    """
    return min(_CANDIDATES, key=lambda one: one.seconds(machines, n_bytes, link, local))


@dataclass(frozen=True, slots=True)
class Fastest(Algorithm):
    """The algorithm that `fastest` finds for the members of each exchange: its order of additions and bytes.

    All members have the same labels of computers, so all find the same one.

    Args:
        n_bytes: size of the vector.
        link: between members of different computers.
        local: between members of one computer; None: as `link`.
    """

    n_bytes: int
    link: Link
    local: Link | None = None

    @override
    def among(self, machines: Sequence[str]) -> Algorithm:
        return fastest(machines, self.n_bytes, self.link, self.local)

    @override
    def segments(self, machines: Sequence[str]) -> int:
        return self.among(machines).segments(machines)

    @override
    def route(self, rank: int, segment: int, machines: Sequence[str]) -> Route:
        return self.among(machines).route(rank, segment, machines)

    @override
    def sent(self, rank: int, machines: Sequence[str], weight: Weight) -> int:
        return self.among(machines).sent(rank, machines, weight)

    @override
    def seconds(self, machines: Sequence[str], n_bytes: int, link: Link, local: Link | None = None) -> float:
        return self.among(machines).seconds(machines, n_bytes, link, local)

    def sentence(self, machines: Sequence[str]) -> str:
        """Words which algorithm is chosen for these members, and what each would take by the model."""
        found, computers = self.among(machines), len(set(machines))
        predicted = ", ".join(
            f"{one} {one.seconds(machines, self.n_bytes, self.link, self.local) * 1e3:.3g} ms"
            for one in _CANDIDATES
        )
        where = f"{len(machines)} replicas on {computers} computer{'s' * (computers != 1)}"
        return f"all-reduce by {found} for {where}, {self.n_bytes:,} bytes; predicted: {predicted}"
