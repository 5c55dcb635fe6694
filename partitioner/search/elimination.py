"""The exact minimum of a sum of tables over a few choices each: variable elimination, branches included.

Variables are eliminated one by one, that with the fewest neighbours first: the tables that contain it are
added, and replaced by a table over its neighbours with the best choice for each of theirs. Along a chain this
is dynamic programming. Where a table would exceed a limit, some choices are given up, and the result says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Costs: TypeAlias = npt.NDArray[np.float64]

MAX_ENTRIES: Final = 1 << 22
"""Entries of a table, at most."""


@dataclass(frozen=True)
class Table:
    """Costs `[choice of the first variable, of the second ...]`."""

    variables: tuple[str, ...]
    costs: Costs


@dataclass(frozen=True)
class Best:
    """Index of the choice of each variable, the sum there, and whether no choice was given up."""

    choices: dict[str, int]
    cost: float
    exact: bool


def minimum(tables: Sequence[Table], *, max_entries: int = MAX_ENTRIES) -> Best:
    """Finds the choices with the least sum; among equal ones, the first. Costs may be infinite.

    Choices are given up where an intermediate table would have more entries than the limit.
    """
    sizes = {v: n for table in tables for v, n in zip(table.variables, table.costs.shape, strict=True)}
    kept = {v: np.arange(n) for v, n in sizes.items()}
    exact = True
    while True:
        order, widest = _order([table.variables for table in tables], {v: len(kept[v]) for v in kept})
        if widest <= max_entries or max(map(len, kept.values())) == 1:
            break
        exact = False
        kept = _fewer(tables, kept)
    narrowed = [Table(t.variables, t.costs[np.ix_(*(kept[v] for v in t.variables))]) for t in tables]
    chosen = _eliminate(narrowed, order)
    choices = {v: int(kept[v][n]) for v, n in chosen.items()}
    cost = sum(float(table.costs[tuple(choices[v] for v in table.variables)]) for table in tables)
    return Best(choices, cost, exact)


def _order(scopes: Sequence[tuple[str, ...]], sizes: Mapping[str, int]) -> tuple[list[str], int]:
    """Orders the elimination; also returns the entries of the largest intermediate table."""
    near: dict[str, set[str]] = {v: set() for v in sizes}
    for scope in scopes:
        for v in scope:
            near[v].update(other for other in scope if other != v)
    order, widest = [], 1
    left = list(sizes)
    while left:
        entries = {v: sizes[v] * float(np.prod([float(sizes[o]) for o in near[v]])) for v in left}
        v = min(left, key=lambda v: entries[v])
        widest = max(widest, int(min(entries[v], 1e18)))
        order.append(v)
        left.remove(v)
        for other in near[v]:
            near[other] = (near[other] | near[v]) - {v, other}
    return order, widest


def _fewer(
    tables: Sequence[Table], kept: dict[str, npt.NDArray[np.int64]]
) -> dict[str, npt.NDArray[np.int64]]:
    """Gives up the worse half of the choices of the variables that have most.

    The score of a choice is the sum of each table's minimum with it.
    """
    most = max(map(len, kept.values()))
    scores = {v: np.zeros(len(kept[v])) for v in kept}
    for table in tables:
        costs = table.costs[np.ix_(*(kept[v] for v in table.variables))]
        for axis, v in enumerate(table.variables):
            scores[v] += costs.min(axis=tuple(k for k in range(costs.ndim) if k != axis))
    return {
        v: np.sort(kept[v][np.argsort(scores[v], kind="stable")[: (len(kept[v]) + 1) // 2]])
        if len(kept[v]) == most
        else kept[v]
        for v in kept
    }


def _eliminate(tables: list[Table], order: Sequence[str]) -> dict[str, int]:
    decisions: list[tuple[str, tuple[str, ...], npt.NDArray[np.int64]]] = []
    for v in order:
        about = [table for table in tables if v in table.variables]
        tables = [table for table in tables if v not in table.variables]
        joined = _sum(about, v)
        best = joined.costs.argmin(axis=-1)
        decisions.append((v, joined.variables[:-1], best))
        if joined.variables[:-1]:
            tables.append(Table(joined.variables[:-1], joined.costs.min(axis=-1)))
    chosen: dict[str, int] = {}
    for v, others, best in reversed(decisions):
        chosen[v] = int(best[tuple(chosen[other] for other in others)])
    return chosen


def _sum(tables: Sequence[Table], last: str) -> Table:
    """Adds tables, with this variable on the last axis."""
    others = [v for v in dict.fromkeys(v for table in tables for v in table.variables) if v != last]
    variables = (*others, last)
    total: Costs = np.zeros((1,) * len(variables))
    for table in tables:
        axes = [variables.index(v) for v in table.variables]
        ordered = np.transpose(table.costs, np.argsort(axes))
        shape = [1] * len(variables)
        for axis, n in zip(sorted(axes), ordered.shape, strict=True):
            shape[axis] = n
        total = total + ordered.reshape(shape)
    return Table(variables, total)
