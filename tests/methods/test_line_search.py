"""The line search on functions of one variable."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from partita.engine.methods import LineSearch
from partita.engine.methods.line_search import Verdict

Function = Callable[[float], tuple[float, float]]


def searched(
    function: Function, step: float, *, c1: float = 1e-3, c2: float = 0.9, max_trials: int = 20
) -> tuple[Verdict, list[float], LineSearch]:
    """The verdict and the steps that were tried."""
    search = LineSearch(*function(0.0), step, c1=c1, c2=c2, max_trials=max_trials)
    tried: list[float] = []
    verdict = None
    while verdict is None:
        tried.append(search.step)
        verdict = search.observe(*function(search.step))
    return verdict, tried, search


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_subnormal=False)


@st.composite
def wavy(draw: st.DrawFn) -> Function:
    """A parabola with waves on it."""
    width, middle = draw(numbers(0.01, 10)), draw(numbers(-3, 30))
    waves = [
        (draw(numbers(-1, 1)), draw(numbers(0.1, 6)), draw(numbers(0, 6)))
        for _ in range(draw(st.integers(0, 3)))
    ]

    def function(t: float) -> tuple[float, float]:
        loss = width * (t - middle) ** 2 + sum(a * math.sin(w * t + p) for a, w, p in waves)
        return loss, 2 * width * (t - middle) + sum(a * w * math.cos(w * t + p) for a, w, p in waves)

    return function


@given(function=wavy(), step=numbers(1e-3, 100), c2=st.sampled_from([0.01, 0.1, 0.5, 0.9]))
def test_an_accepted_step_satisfies_the_strong_wolfe_conditions(
    function: Function, step: float, c2: float
) -> None:
    """A search may also end in an interval that is not searched any more: 1e-3 of its end."""
    loss, slope = function(0.0)
    assume(slope < -1e-3)
    verdict, tried, search = searched(function, step, c2=c2, max_trials=60)
    there, slope_there = function(tried[-1])
    if verdict == "short":
        last, near = tried[-1], min(tried[:-1], key=lambda other: abs(other - tried[-1]))
        assert abs(last - near) <= 1e-3 * max(last, near)
        return
    assert verdict == "found"
    assert search.best is not None and search.best.step == tried[-1]
    assert there <= loss + 1e-3 * tried[-1] * slope
    assert abs(slope_there) <= c2 * abs(slope)


@given(function=wavy(), step=numbers(1e-3, 100), max_trials=st.integers(1, 4))
def test_no_more_trials_than_allowed(function: Function, step: float, max_trials: int) -> None:
    loss, slope = function(0.0)
    assume(slope < -1e-3)
    verdict, tried, search = searched(function, step, c2=0.01, max_trials=max_trials)
    assert len(tried) <= max_trials
    low = [t for t in tried if function(t)[0] <= loss + 1e-3 * t * slope]
    assert (verdict == "nothing") == (not low)
    if verdict == "short":
        assert search.best is not None and search.best.loss == min(function(t)[0] for t in low)


def test_a_parabola_takes_one_step_to_its_minimum() -> None:
    """The first trial determines the parabola."""
    verdict, tried, _ = searched(lambda t: ((t - 3) ** 2, 2 * (t - 3)), 10.0, c2=0.1)
    assert (verdict, tried) == ("found", [10.0, pytest.approx(3.0)])


@pytest.mark.parametrize("nothing", [math.inf, math.nan, -math.inf])
@pytest.mark.parametrize("wall", [1e-3, 0.9, 1.0, 7.0])
def test_the_search_turns_back_from_nonfinite_losses(nothing: float, wall: float) -> None:
    """-log(wall - t) - 5t/wall has its minimum before the wall."""

    def barrier(t: float) -> tuple[float, float]:
        return (
            (-math.log(wall - t) - 5 * t / wall, 1 / (wall - t) - 5 / wall)
            if t < wall
            else (nothing, nothing)
        )

    verdict, tried, _ = searched(barrier, 1.0, c2=0.1)
    assert verdict == "found"
    assert tried[-1] == pytest.approx(0.8 * wall, rel=0.2)


def test_a_cliff_leaves_the_best_step_before_it() -> None:
    """The loss falls as far as it is finite."""
    verdict, tried, search = searched(lambda t: (-t, -1.0) if t < 5 else (math.nan, math.nan), 1.0)
    assert verdict == "short"
    assert search.best is not None and 4.9 < search.best.step < 5
    assert max(tried) >= 5


def test_an_unbounded_decrease_is_detected() -> None:
    verdict, tried, _ = searched(lambda t: (-t, -1.0), 0.5)
    assert verdict == "unbounded"
    assert tried[-1] == 0.5e10


def test_a_slope_that_is_not_the_functions_finds_nothing() -> None:
    """The slope is negative, but the loss rises."""
    verdict, _, search = searched(lambda t: (1 + t, -1.0), 1.0)
    assert (verdict, search.best) == ("nothing", None)


def test_a_decrease_below_rounding_ends_the_search() -> None:
    """No trial is wasted on it; a step that is no higher may be taken."""
    verdict, tried, search = searched(lambda t: (1e20, -1.0), 1.0)
    assert (verdict, tried) == ("short", [1.0])
    assert search.best is not None and search.best.loss == 1e20
