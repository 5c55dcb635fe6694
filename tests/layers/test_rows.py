"""Sets of rows behave as sets of integers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.layers import rows

runs = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=6)


def members(of: rows.Rows) -> set[int]:
    return {row for start, stop in of for row in range(start, stop)}


def is_normal(of: rows.Rows) -> bool:
    """Ascending, disjoint, not empty, not touching."""
    return all(a < b for a, b in of) and all(left[1] < right[0] for left, right in pairwise(of))


@given(runs, runs)
def test_operations_are_those_of_sets(
    left_runs: list[tuple[int, int]], right_runs: list[tuple[int, int]]
) -> None:
    left, right = rows.union(left_runs), rows.union(right_runs)
    for found, expected in (
        (left, members(tuple(left_runs))),
        (rows.union(left, right), members(left) | members(right)),
        (rows.intersection(left, right), members(left) & members(right)),
        (rows.difference(left, right), members(left) - members(right)),
        (rows.from_indices(sorted(members(left))), members(left)),
    ):
        assert is_normal(found)
        assert members(found) == expected
    assert rows.count(left) == len(members(left))
    assert rows.bounds(left) == ((min(members(left)), max(members(left)) + 1) if left else (0, 0))


@given(runs)
def test_the_text_parses_back(drawn: list[tuple[int, int]]) -> None:
    of = rows.union(drawn)
    assert rows.parse(rows.text(of)) == of


def test_text_is_what_programs_print() -> None:
    assert rows.text(((0, 3), (5, 8))) == "0:3,5:8"
    assert rows.text(()) == ""


@pytest.mark.parametrize("written", ["3", "1:2,7", "a:b", "1:"])
def test_what_is_no_run_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match=r"is not a run of rows|invalid literal"):
        rows.parse(written)
