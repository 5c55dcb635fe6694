"""What is made of the times of a link: numbers that do not decrease with the size of a message."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.profile.links import LinkMeasurement, never_less


def test_noise_does_not_make_larger_messages_quicker() -> None:
    times = {"send_s": (2e-5, 1e-5, 3e-5), "receive_s": (1e-5, 1e-5, 1e-5), "stream_s": (4e-5, 4e-5, 4e-5)}
    measured = LinkMeasurement(start_s=0.0, total_s=(5e-5, 6e-5, 5e-5), both_s=4e-5, **times)
    assert [row.send_s for row in measured.link.table] == [1.5e-5, 1.5e-5, 3e-5]
    assert measured.link.latency_s == pytest.approx(1.5e-5)


@given(st.lists(st.floats(-1e3, 1e3), max_size=8))
def test_the_nearest_numbers_that_do_not_decrease(numbers: list[float]) -> None:
    found = never_less(numbers)
    assert all(a <= b + 1e-9 for a, b in pairwise(found)) and len(found) == len(numbers)
    assert sum(found) == pytest.approx(sum(numbers), abs=1e-6)
    assert found == numbers or any(a > b for a, b in pairwise(numbers)) or len(set(numbers)) < len(numbers)
