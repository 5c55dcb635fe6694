"""A tall picture is cut into columns, as a newspaper is: each goes on where the one to its left ends.

A layer that other columns listen to is shown there again, pale, below those that listen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from partita.engine.view.layout import Wiring

TALL = 14
"""Ranks up to which there is one column."""
ASPECT = 1.4
"""Width over height that is aimed at."""


@dataclass(frozen=True)
class Column:
    """One column.

    Args:
        wiring: its layers, what is given to them, and those of other columns that they listen to.
        ranks: of each, counted from the lowest of the column.
        again: those of other columns, with the number of the column where they are.
    """

    wiring: Wiring
    ranks: Mapping[str, int]
    again: Mapping[str, int]


def columns_for(ranks: int, width: float, height: float) -> int:
    """How many columns come nearest to the aspect that is aimed at.

    Args:
        ranks: of the whole picture.
        width: of a column.
        height: of one column with everything.
    """
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
    heard = {source for name in mine for source in wiring.sources[name]}
    again = {name: column_of[name] for name in column_of if name in heard and column_of[name] != number}
    light = frozenset(name for name in wiring.light if name in heard)
    sources = {
        name: wiring.sources[name] if column_of.get(name) == number else ()
        for name in wiring.sources
        if name in light or name in again or column_of.get(name) == number
    }
    local = {name: ranks[name] - lowest + 1 for name in mine} | dict.fromkeys(again, 0)
    for name in light:
        local[name] = min(local[consumer] for consumer in wiring.consumers[name] if consumer in mine) - 1
    return Column(Wiring(sources, light), local, again)
