"""Places of layers: in ranks from the inputs up, branches side by side, and lanes for edges that pass a rank.

A layered drawing as usual: long edges get a narrow lane in every rank that they pass; sweeps order each rank
by the means of its neighbours, and then move everything as near to its neighbours as the order allows. Bars
are heavy and what is given or passes by is light, so a chain of layers stands straight; the middle draws all.
A tall picture is cut into columns, as a newspaper is: each goes on where the one to its left ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

Item: TypeAlias = tuple[str, int]
"""A layer in its rank, or the lane in which an edge of the layer passes another rank."""

GAP = 36.0
"""Between neighbours in a rank, in pixels."""
SWEEPS, ORDERING = 60, 12
"""Sweeps in all, and how many of them may change the order."""
LIGHT = 0.001
"""Weight of a lane and of what is given; a layer weighs 1."""
PULL = 0.2
"""Weight with which the middle of the picture draws everything."""
TALL = 14
"""Ranks up to which there is one column."""
ASPECT = 1.4
"""Width over height that columns aim at."""


@dataclass(frozen=True)
class Wiring:
    """The inputs of each layer, in topological order, and the names of those layers that are given."""

    sources: Mapping[str, tuple[str, ...]]
    light: frozenset[str]

    @cached_property
    def consumers(self) -> dict[str, list[str]]:
        """The layers that use each."""
        found: dict[str, list[str]] = {name: [] for name in self.sources}
        for name, sources in self.sources.items():
            for source in dict.fromkeys(sources):
                found[source].append(name)
        return found


def ranks_of(wiring: Wiring) -> dict[str, int]:
    """Puts each layer one above the highest of its inputs; what is given right below its first consumer."""
    found: dict[str, int] = {}
    for name, sources in wiring.sources.items():
        if name not in wiring.light:
            found[name] = 1 + max((found.get(source, 0) for source in sources), default=0)
    for name in wiring.light:
        found[name] = min(found[consumer] for consumer in wiring.consumers[name]) - 1
    return found


def arrange(
    wiring: Wiring, ranks: Mapping[str, int], reach: Mapping[str, tuple[float, float]], *, lane: float
) -> dict[Item, float]:
    """Orders each rank, and moves everything as near to its neighbours as the order allows; returns centres.

    A layer reaches so far to the left and to the right of its centre, a lane half its width (`lane`).
    """
    rows: list[list[Item]] = [[] for _ in range(max(ranks.values()) + 1)]
    near: dict[Item, set[Item]] = {}
    extents: dict[Item, tuple[float, float]] = {}

    def join(one: Item, other: Item) -> None:
        near.setdefault(one, set()).add(other)
        near.setdefault(other, set()).add(one)

    for name in wiring.sources:
        rows[ranks[name]].append((name, ranks[name]))
        extents[name, ranks[name]] = reach[name]
    for name, sources in wiring.sources.items():
        top = max((ranks[consumer] for consumer in wiring.consumers[name]), default=0)
        for rank in range(ranks[name] + 1, top):
            rows[rank].append((name, rank))
            extents[name, rank] = (lane, lane)
            join((name, rank - 1), (name, rank))
        for source in sources:
            join((source, ranks[name] - 1), (name, ranks[name]))
    heavy = ranks.items() - {(name, ranks[name]) for name in wiring.light}
    weights = {item: 1.0 if item in heavy else LIGHT for item in extents}
    return _swept(rows, {item: sorted(near.get(item, ())) for item in extents}, weights, extents)


def _swept(
    rows: list[list[Item]],
    near: Mapping[Item, Sequence[Item]],
    weights: Mapping[Item, float],
    extents: Mapping[Item, tuple[float, float]],
) -> dict[Item, float]:
    """Returns the centres after all sweeps."""
    centres: dict[Item, float] = {}

    def pack(row: list[Item], wishes: list[float]) -> None:
        places = packed(wishes, [weights[item] for item in row], [extents[item] for item in row])
        centres.update(zip(row, places, strict=True))

    def wish(item: Item) -> float:
        if not near[item]:
            return centres[item]
        total = sum(weights[other] for other in near[item]) + PULL * weights[item]
        return sum(weights[other] * centres[other] for other in near[item]) / total

    for row in rows:
        pack(row, [0.0] * len(row))
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            if sweep < ORDERING:  # on a tie lanes stay to the right, where bars have no labels
                row.sort(key=lambda item: (round(wish(item) / GAP), weights[item] == LIGHT))
            pack(row, [wish(item) for item in row])
    return centres


def packed(
    wishes: Sequence[float], weights: Sequence[float], extents: Sequence[tuple[float, float]]
) -> list[float]:
    """Returns places in this order, as near to the wishes as can be (least squares) without touching.

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


@dataclass(frozen=True)
class Column:
    """Layers, what is given to them and their inputs in other columns, with ranks from the lowest one on.

    `again` has the number of the column of each input that lies in another one.
    """

    wiring: Wiring
    ranks: Mapping[str, int]
    again: Mapping[str, int]


def columns_for(ranks: int, width: float, height: float) -> int:
    """Returns how many columns of this width, of a single one's height, come nearest to the aspect."""
    if ranks <= TALL:
        return 1
    aspects = {count: width * count**2 / height for count in range(1, ranks // 4 + 1)}
    return min(aspects, key=lambda count: abs(math.log(aspects[count] / ASPECT)))


def split(wiring: Wiring, ranks: Mapping[str, int], count: int) -> list[Column]:
    """Cuts the ranks into so many columns of about the same height, from the lowest on."""
    layers = [name for name in wiring.sources if name not in wiring.light]
    top = max(ranks[name] for name in layers)
    column_of = {name: min((ranks[name] - 1) * count // top, count - 1) for name in layers}
    return [_column(wiring, ranks, column_of, number) for number in range(count)]


def _column(wiring: Wiring, ranks: Mapping[str, int], column_of: Mapping[str, int], number: int) -> Column:
    mine = [name for name, column in column_of.items() if column == number]
    lowest = min(ranks[name] for name in mine)
    used = {source for name in mine for source in wiring.sources[name]}
    again = {name: column_of[name] for name in column_of if name in used and column_of[name] != number}
    light = frozenset(name for name in wiring.light if name in used)
    sources = {
        name: wiring.sources[name] if column_of.get(name) == number else ()
        for name in wiring.sources
        if name in light or name in again or column_of.get(name) == number
    }
    local = {name: ranks[name] - lowest + 1 for name in mine} | dict.fromkeys(again, 0)
    for name in light:
        local[name] = min(local[consumer] for consumer in wiring.consumers[name] if consumer in mine) - 1
    return Column(Wiring(sources, light), local, again)
