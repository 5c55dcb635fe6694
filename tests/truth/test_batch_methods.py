"""Batch methods on networks, against SciPy's L-BFGS-B, PyTorch's L-BFGS and formulas, in float64.

Rounding differs between CPUs and decides when a long run ends: last bits of a start moved single runs by 0.4
in the logarithm of their iterations (standard deviation 0.2). So work is compared over several starts, and a
loss with a tolerance that follows from the gradient that was left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from statistics import median

import numpy as np
import pytest
from scipy import optimize

from benchmarks._batch_inline import played
from benchmarks._batch_problems import PROBLEMS, Problem
from benchmarks._batch_references import Found, Reference, by_scipy, by_torch
from partita.engine import LBFGS, LineSearchMethod, Minimum, NonlinearCG, minimise
from partita.engine.parameters import initialise

CONVEX = ("digits", "iris", "wine", "breast_cancer", "diabetes", "linnerud")
TWO_LAYERS = tuple(f"{name}, two layers" for name in CONVEX)
LONG = ("digits, two layers", "rosenbrock 2", "rosenbrock 100", "quadratic")
"""Hundreds of iterations, or nodes that must be compiled first."""


def started(problem: Problem, seed: int = 0) -> Reference:
    return Reference(problem, initialise(problem.graph.parameters.values(), seed, dtype="float64"))


@dataclass(frozen=True)
class Pair:
    """Our L-BFGS and SciPy's from one start, at their default tolerances."""

    ours: Minimum
    theirs: Found
    uncertainty: float
    """The bound of both losses above the minimum, where the problem is convex: `|g|^2 / (2 * l2)`."""

    @property
    def iterations(self) -> float:
        return len(self.ours.iterations) / self.theirs.iterations

    @property
    def evaluations(self) -> float:
        return self.ours.evaluations / self.theirs.evaluations


def pairs(name: str, starts: int) -> Iterator[Pair]:
    problem = PROBLEMS[name]()
    with played(problem) as function:
        for seed in range(starts):
            start = started(problem, seed).point
            ours = minimise(function, start, LBFGS(max_iterations=10_000))
            theirs = by_scipy(function, start, gtol=1e-5, ftol=2.2e-9)
            assert ours.outcome.kind == "converged", (name, seed)
            squares = max(float(np.square(function(end)[1]).sum()) for end in (ours.x, theirs.point))
            yield Pair(ours, theirs, squares / (2 * problem.l2) if problem.l2 else math.inf)


@pytest.mark.slow  # its nodes must be compiled
@pytest.mark.parametrize("n", [2, 100])
def test_rosenbrock_as_a_network_is_the_function(n: int) -> None:
    problem = PROBLEMS[f"rosenbrock {n}"]()
    start = problem.data["start"][0].ravel()
    with played(problem) as function:
        for shift in np.random.default_rng(n).normal(size=(5, n)):
            value, gradient = function(shift)
            assert value == pytest.approx(optimize.rosen(start + shift), rel=1e-12)
            np.testing.assert_allclose(gradient, optimize.rosen_der(start + shift), rtol=1e-11, atol=1e-9)


def test_a_quadratic_as_a_network_is_the_function() -> None:
    problem = PROBLEMS["quadratic"]()
    scale, goal = (array[0] for array in problem.data.values())
    assert (scale.max() / scale.min()) ** 2 == pytest.approx(1e4)
    with played(problem) as function:
        for point in np.random.default_rng(0).normal(size=(5, len(scale))):
            value, gradient = function(point)
            assert value == pytest.approx(0.5 * float(((scale * point - goal) ** 2).sum()), rel=1e-12)
            np.testing.assert_allclose(gradient, scale * (scale * point - goal), rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("name", CONVEX + TWO_LAYERS)
def test_the_networks_of_shipped_sets_are_what_pytorch_computes(name: str) -> None:
    problem = PROBLEMS[name]()
    reference = started(problem)
    with played(problem) as function:
        for step in (0.0, 0.3):
            point = reference.point + step
            value, gradient = function(point)
            expected, slope = reference.at(point)
            assert value == pytest.approx(expected, rel=1e-12)
            np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", CONVEX)
def test_lbfgs_needs_as_many_iterations_as_scipy(name: str) -> None:
    """One minimum, which both reach from every start; runs are short, so rounding moves them by little."""
    found = list(pairs(name, 5))
    assert median(pair.iterations for pair in found) == pytest.approx(1, rel=0.15)
    assert median(pair.evaluations for pair in found) == pytest.approx(1, rel=0.15)
    for pair in found:
        assert abs(pair.ours.loss - pair.theirs.loss) <= pair.uncertainty + 1e-12 * pair.theirs.loss
        assert pair.uncertainty <= 1e-3 * pair.theirs.loss, "they were stopped too early to be compared"


STARTS = 7


def check_work(found: dict[str, list[Pair]]) -> None:
    """The median of n runs with deviation s varies by `1.25 * s / sqrt(n)`: with s = 0.2 by 0.095 for the
    seven starts of a problem and by 0.04 or less for all. The bounds are four times that.
    """
    for kind in ("iterations", "evaluations"):
        for name, runs in found.items():
            work = median(math.log(getattr(pair, kind)) for pair in runs)
            assert abs(work) <= 4 * 1.25 * 0.2 / math.sqrt(len(runs)), (name, kind, work)
        work = median(math.log(getattr(pair, kind)) for runs in found.values() for pair in runs)
        assert abs(work) <= 4 * 1.25 * 0.2 / math.sqrt(sum(map(len, found.values()))), (kind, work)


def check_depth(runs: list[Pair]) -> None:
    """Starts lead to several minima, and rounding may change to which; the deepest that was found is
    compared. What the tolerances leave of one is below 1e-4 of the loss.
    """
    deepest = min(pair.theirs.loss for pair in runs)
    assert min(pair.ours.loss for pair in runs) == pytest.approx(deepest, rel=1e-3, abs=1e-6)


@pytest.mark.slow
def test_lbfgs_needs_as_many_iterations_as_scipy_where_there_are_several_minima() -> None:
    found = {name: list(pairs(name, STARTS)) for name in TWO_LAYERS if name not in LONG}
    check_work(found)
    for runs in found.values():
        check_depth(runs)


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_lbfgs_needs_as_many_iterations_as_scipy_for_long(name: str) -> None:
    found = {name: list(pairs(name, STARTS))}
    check_work(found)
    check_depth(found[name])


@cache
def minima(name: str) -> tuple[Found, Found]:
    """Minima of a convex problem, found by SciPy and PyTorch."""
    reference = started(PROBLEMS[name]())
    start = reference.point
    scipy = by_scipy(reference.at, start, gtol=1e-7, ftol=0.0)
    reference.move(start)
    return scipy, by_torch(reference, gtol=1e-7)


WITH_LONG_ONES_APART = [
    pytest.param(name, marks=pytest.mark.slow) if name in ("digits", "breast_cancer", "wine") else name
    for name in CONVEX
]


@pytest.mark.parametrize("method", [LBFGS, NonlinearCG])
@pytest.mark.parametrize("name", WITH_LONG_ONES_APART)
def test_a_convex_problem_has_the_minimum_of_scipy_and_of_pytorch(
    name: str, method: type[LineSearchMethod]
) -> None:
    problem = PROBLEMS[name]()
    with played(problem) as function:
        ours = minimise(function, started(problem).point, method(gtol=1e-7, ftol=0.0))
    assert ours.outcome.kind == "converged"
    scipy, pytorch = minima(name)
    assert ours.loss == pytest.approx(scipy.loss, rel=1e-6)
    assert ours.loss == pytest.approx(pytorch.loss, rel=1e-6)
    np.testing.assert_allclose(ours.x, scipy.point, atol=1e-3)
