"""Rounds of benchmarks: within their time, as many as were asked for, and again where figures differ."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from benchmarks._harness import in_turn
from benchmarks._rounds import Rounds


class Clock:
    """Seconds that pass where a round or a preparation says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def count(self, rounds: Iterable[int], seconds: float) -> int:
        """How many rounds there are, if each takes so long."""
        found = 0
        for _ in rounds:
            self.now, found = self.now + seconds, found + 1
        return found


@pytest.mark.parametrize(("round_s", "expected"), [(0.1, 5), (10.0, 3), (59.0, 1), (1000.0, 1)])
def test_measurements_share_the_time(round_s: float, expected: int) -> None:
    """Each of four has 60 seconds, of which 5 prepare it, and 0.6 of the others are for its first rounds."""
    clock = Clock()
    rounds = Rounds(5, limit_s=240.0, now=clock)
    rounds.expect(4)
    found = []
    for _ in range(4):
        clock.now += 5.0
        found.append(clock.count(rounds, round_s))
    assert found[0] == expected
    assert clock.now <= max(240.0, 4 * (5.0 + round_s))


def test_as_many_as_were_asked_for_however_long_they_take() -> None:
    clock = Clock()
    rounds = Rounds(7, exactly=True, limit_s=10.0, now=clock)
    assert [clock.count(rounds, 60.0), clock.count(rounds.again(), 60.0)] == [7, 7]


@pytest.mark.parametrize(("round_s", "expected"), [(1.0, 5), (18.0, 2), (40.0, 0)])
def test_what_is_measured_again_has_the_rest_of_the_time(round_s: float, expected: int) -> None:
    clock = Clock()
    rounds = Rounds(5, limit_s=100.0, now=clock)
    clock.count(rounds, round_s)
    assert clock.count(rounds.again(), round_s) == expected
    assert clock.now <= 100.0


def test_new_figures_count_where_some_differ_much(capsys: pytest.CaptureFixture[str]) -> None:
    figures = iter([1.0, 2.0, 1.0, 1.1])
    found = in_turn({"a": lambda: next(figures)}, rounds=Rounds(2, exactly=True), rest_s=0.0)
    assert found == {"a": [1.0, 1.1]}
    assert capsys.readouterr().out == "measured again: a (2.00 times); then none\n"


def test_a_narrow_spread_is_measured_once(capsys: pytest.CaptureFixture[str]) -> None:
    figures = iter([1.0, 1.4])
    found = in_turn({"a": lambda: next(figures)}, rounds=Rounds(2, exactly=True), rest_s=0.0)
    assert (found, capsys.readouterr().out) == ({"a": [1.0, 1.4]}, "")


def test_says_where_no_time_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    clock, figures = Clock(), iter([1.0, 9.0])

    def measured() -> float:
        clock.now += 25.0
        return next(figures)

    found = in_turn({"a": measured}, rounds=Rounds(2, limit_s=90.0, now=clock), rest_s=0.0)
    assert found == {"a": [1.0, 9.0]}
    assert capsys.readouterr().out.startswith("wide, and no time is left to measure again: a (9.00 times)")
