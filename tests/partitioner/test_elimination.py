"""Variable elimination finds the least sum: of everything that can be chosen, tried one by one."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.partitioner.search.elimination import Table, minimum


@st.composite
def sums(draw: st.DrawFn) -> list[Table]:
    """Tables over up to six variables: a chain with branches, skips, and tables of three."""
    sizes = {f"v{n}": draw(st.integers(1, 4)) for n in range(draw(st.integers(1, 6)))}
    scopes = [(v,) for v in sizes]
    for _ in range(draw(st.integers(0, 7))):
        count = draw(st.integers(1, min(3, len(sizes))))
        scopes.append(tuple(draw(st.permutations(sorted(sizes)))[:count]))
    costs = np.random.default_rng(draw(st.integers(0, 1000)))
    return [Table(scope, costs.integers(0, 9, [sizes[v] for v in scope]).astype(float)) for scope in scopes]


def least(tables: list[Table]) -> float:
    """Minimum by exhaustive search."""
    sizes = {v: n for table in tables for v, n in zip(table.variables, table.costs.shape, strict=True)}
    return min(
        cost(tables, dict(zip(sizes, place, strict=True))) for place in product(*map(range, sizes.values()))
    )


def cost(tables: list[Table], choices: dict[str, int]) -> float:
    return sum(float(table.costs[tuple(choices[v] for v in table.variables)]) for table in tables)


@given(sums())
def test_the_least_sum(tables: list[Table]) -> None:
    best = minimum(tables)
    assert best.exact
    assert best.cost == cost(tables, best.choices) == least(tables)
    assert best == minimum(tables)


@given(sums())
def test_a_narrow_limit_gives_choices_up_and_says_so(tables: list[Table]) -> None:
    best = minimum(tables, max_entries=6)
    assert best.cost == cost(tables, best.choices) >= least(tables)
    assert not best.exact or best.cost == least(tables)


def test_what_cannot_be_is_never_chosen() -> None:
    costs = np.array([[np.inf, 3.0], [5.0, np.inf]])
    best = minimum([Table(("a", "b"), costs), Table(("a",), np.array([0.0, 1.0]))])
    assert best.choices == {"a": 0, "b": 1} and best.cost == pytest.approx(3.0)


def test_a_long_chain_takes_no_longer_than_its_links() -> None:
    draw = np.random.default_rng(0)
    tables = [Table((f"v{n}", f"v{n + 1}"), draw.random((20, 20))) for n in range(200)]
    assert minimum(tables).exact
