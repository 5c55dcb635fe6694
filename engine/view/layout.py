"""Where layers lie: in ranks from the inputs up, branches side by side, and lanes for what passes a rank by.

A layered drawing as usual: long edges get a narrow lane in every rank that they pass; sweeps order each rank
by the means of its neighbours, and then move everything as near to its neighbours as the order allows. Bars
are heavy and what is given or passes by is light, so a chain of layers stands straight; the middle draws all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

Item: TypeAlias = tuple[str, int]
"""A layer in its rank, or the lane in which what comes from the layer passes another rank."""

GAP = 36.0
"""Between neighbours in a rank, in pixels."""
SWEEPS, ORDERING = 60, 12
"""Sweeps in all, and how many of them may change the order."""
LIGHT = 0.001
"""Weight of a lane and of what is given; a layer weighs 1."""
PULL = 0.2
"""Weight with which the middle of the picture draws everything."""


@dataclass(frozen=True)
class Wiring:
    """What is placed.

    Args:
        sources: of everything, by name and in topological order, what it listens to.
        light: the names of what is given.
    """

    sources: Mapping[str, tuple[str, ...]]
    light: frozenset[str]

    @cached_property
    def consumers(self) -> dict[str, list[str]]:
        """Who listens to each."""
        found: dict[str, list[str]] = {name: [] for name in self.sources}
        for name, sources in self.sources.items():
            for source in dict.fromkeys(sources):
                found[source].append(name)
        return found


@dataclass(frozen=True)
class Layout:
    """The rank of each layer, from the bottom, and the centre of each item, in pixels from anywhere."""

    ranks: Mapping[str, int]
    centres: dict[Item, float]

    def passage(self, source: str, consumer: str) -> list[Item]:
        """The lanes by which an edge gets from a layer to the next, from below."""
        return [(source, rank) for rank in range(self.ranks[source] + 1, self.ranks[consumer])]


def arrange(
    wiring: Wiring, ranks: Mapping[str, int], extents: Mapping[str, tuple[float, float]], *, lane: float
) -> Layout:
    """Places every layer.

    Args:
        wiring: the layers.
        ranks: of each, from 0; a layer lies above all that it listens to.
        extents: how far each layer reaches to the left and to the right of its centre.
        lane: half the width of a lane.
    """
    return Layout(ranks, _Sweeps(wiring, ranks, extents, lane).centres)


def ranks_of(wiring: Wiring) -> dict[str, int]:
    """Each layer one above the highest of its inputs; what is given right below its first listener."""
    found: dict[str, int] = {}
    for name, sources in wiring.sources.items():
        if name not in wiring.light:
            found[name] = 1 + max((found.get(source, 0) for source in sources), default=0)
    for name in wiring.light:
        found[name] = min(found[consumer] for consumer in wiring.consumers[name]) - 1
    return found


class _Sweeps:
    """Orders each rank, and moves everything as near to its neighbours as the order allows."""

    def __init__(
        self,
        wiring: Wiring,
        ranks: Mapping[str, int],
        extents: Mapping[str, tuple[float, float]],
        lane: float,
    ) -> None:
        self.rows: list[list[Item]] = [[] for _ in range(max(ranks.values()) + 1)]
        self.near: dict[Item, set[Item]] = {}
        self.extents: dict[Item, tuple[float, float]] = {}
        self.weights: dict[Item, float] = {}
        self.centres: dict[Item, float] = {}
        for name in wiring.sources:
            self._add((name, ranks[name]), extents[name], LIGHT if name in wiring.light else 1.0)
        for name, sources in wiring.sources.items():
            top = max((ranks[consumer] for consumer in wiring.consumers[name]), default=0)
            for rank in range(ranks[name] + 1, top):
                self._add((name, rank), (lane, lane), LIGHT)
                self._join((name, rank - 1), (name, rank))
            for source in sources:
                self._join((source, ranks[name] - 1), (name, ranks[name]))
        self._sweep()

    def _add(self, item: Item, extents: tuple[float, float], weight: float) -> None:
        self.rows[item[1]].append(item)
        self.extents[item], self.weights[item] = extents, weight

    def _join(self, one: Item, other: Item) -> None:
        self.near.setdefault(one, set()).add(other)
        self.near.setdefault(other, set()).add(one)

    def _sweep(self) -> None:
        for row in self.rows:
            self._pack(row, [0.0] * len(row))
        for sweep in range(SWEEPS):
            for row in self.rows if sweep % 2 == 0 else reversed(self.rows):
                if sweep < ORDERING:  # on a tie lanes stay to the right, where bars have no labels
                    row.sort(key=lambda item: (round(self._wish(item) / GAP), self.weights[item] == LIGHT))
                self._pack(row, [self._wish(item) for item in row])

    def _wish(self, item: Item) -> float:
        beside = self.near.get(item, ())
        if not beside:
            return self.centres[item]
        total = sum(self.weights[other] for other in beside) + PULL * self.weights[item]
        return sum(self.weights[other] * self.centres[other] for other in sorted(beside)) / total

    def _pack(self, row: list[Item], wishes: list[float]) -> None:
        places = packed(wishes, [self.weights[item] for item in row], [self.extents[item] for item in row])
        self.centres |= dict(zip(row, places, strict=True))


def packed(
    wishes: Sequence[float], weights: Sequence[float], extents: Sequence[tuple[float, float]]
) -> list[float]:
    """Places in this order, as near to the wishes as can be (least squares) without touching.

    Shifted by what must lie between them, places only have to ascend: neighbours that do not are pooled.
    """
    shifts = [0.0]
    for (_, right), (left, _) in pairwise(extents):
        shifts.append(shifts[-1] + right + GAP + left)
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for wish, weight, shift in zip(wishes, weights, shifts, strict=False):
        mean, total, count = wish - shift, weight, 1
        while pools and pools[-1][0] > mean:
            before, heavy, many = pools.pop()
            mean = (mean * total + before * heavy) / (total + heavy)
            total, count = total + heavy, count + many
        pools.append((mean, total, count))
    means = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + shift for mean, shift in zip(means, shifts, strict=False)]
