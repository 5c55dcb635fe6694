"""Offsets of clocks: the true offset lies within the estimated range, whatever the delays are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol.clocks import Offset, RoundTrip, offset_of

WAYS = st.integers(0, 1 << 20).map(lambda n: n / (1 << 16))
"""Delays in seconds: different there and back, and such that sums are exact."""


@st.composite
def rounds(draw: st.DrawFn) -> tuple[float, list[RoundTrip]]:
    """Draws an offset, and round trips that it leads to."""
    offset, now = float(draw(st.integers(-10_000, 10_000))), 0.0
    found = []
    for there, thinking, back in draw(st.lists(st.tuples(WAYS, WAYS, WAYS), min_size=1, max_size=8)):
        received, replied = now + there, now + there + thinking
        found.append(RoundTrip(now, received - offset, replied - offset, replied + back))
        now = replied + back + draw(WAYS)
    return offset, found


@given(rounds())
def test_the_truth_lies_within_the_uncertainty(drawn: tuple[float, list[RoundTrip]]) -> None:
    true, found = drawn
    said = offset_of(found)
    assert abs(said.offset_s - true) <= said.uncertainty_s
    shortest = min((r.returned_s - r.sent_s) - (r.replied_s - r.received_s) for r in found)
    assert said.uncertainty_s <= shortest / 2  # what the Network Time Protocol would say


@given(rounds(), rounds())
def test_more_rounds_never_know_less(
    drawn: tuple[float, list[RoundTrip]], more: tuple[float, list[RoundTrip]]
) -> None:
    true, few = drawn
    shifted = [
        RoundTrip(r.sent_s, r.received_s + more[0] - true, r.replied_s + more[0] - true, r.returned_s)
        for r in more[1]
    ]
    assert offset_of([*few, *shifted]).uncertainty_s <= offset_of(few).uncertainty_s


def test_unequal_ways_are_worked_out_by_hand() -> None:
    """The other clock is 100 s behind. There 1 s and back 5 s, then there 4 s and back 2 s."""
    found = offset_of([RoundTrip(0.0, -99.0, -99.0, 6.0), RoundTrip(10.0, -86.0, -86.0, 16.0)])
    assert found == Offset(100.5, 1.5)  # of [99, 105] and [96, 102] the common [99, 102]


def test_clocks_that_contradict_each_other_believe_the_shortest_round() -> None:
    """The other clock has jumped by 50 s between two rounds."""
    found = offset_of([RoundTrip(0.0, 1.0, 1.0, 2.0), RoundTrip(10.0, 61.0, 61.0, 16.0)])
    assert found == Offset(0.0, 1.0)


def test_no_round_is_no_knowledge() -> None:
    with pytest.raises(ValueError, match="nothing is known of the other clock; send one"):
        offset_of([])
