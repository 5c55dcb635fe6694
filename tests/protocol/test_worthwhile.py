"""How many replicas an evaluation is worth."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol.worthwhile import SHARE_S, chosen, replicas_worth


@pytest.mark.parametrize(
    ("work_s", "present", "worth"),
    [
        (0.0, 2, 1),
        (0.9e-3, 2, 1),
        (1.1e-3, 2, 2),
        (1.1e-3, 8, 2),
        (1.0, 8, 8),
        (math.nan, 8, 8),
        (math.inf, 8, 8),
        (0.0, 0, 1),
    ],
)
def test_each_replica_has_a_share_that_is_worth_its_messages(work_s: float, present: int, worth: int) -> None:
    assert replicas_worth(work_s, present) == worth


@given(st.floats(0, 1), st.integers(1, 2000))
def test_the_number_is_the_largest_that_is_worth_it(work_s: float, present: int) -> None:
    worth = replicas_worth(work_s, present)
    assert 1 <= worth <= present
    assert worth == 1 or work_s / worth >= SHARE_S * 0.999
    assert worth == present or work_s / (worth + 1) < SHARE_S * 1.001


@given(st.integers(1, 5), st.lists(st.integers(0, 6), unique=True), st.lists(st.integers(0, 6), unique=True))
def test_those_chosen_before_are_chosen_again(number: int, before: list[int], present: list[int]) -> None:
    found = chosen(number, before, dict.fromkeys(present))
    assert len(found) == len(set(found)) == min(number, len(present))
    assert set(found) <= set(present)
    again = [replica for replica in before if replica in present][:number]
    assert list(found[: len(again)]) == again
