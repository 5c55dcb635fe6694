"""The all-reduce algorithm that is fastest by the alpha-beta model, for a vector and places of members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from partita.engine.protocol.exchange.algorithm import Algorithm, Link
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
