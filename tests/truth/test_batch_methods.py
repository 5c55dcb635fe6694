"""Batch methods on networks, against SciPy's L-BFGS-B, PyTorch's L-BFGS and formulas, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import optimize

from benchmarks._batch_inline import played
from benchmarks._batch_problems import PROBLEMS, Problem
from benchmarks._batch_references import Reference, by_scipy, by_torch
from partita.engine.drivers.minimise import minimise
from partita.engine.methods import LBFGS, LineSearchMethod, NonlinearCG
from partita.engine.parameters.initialise import initialise

CONVEX = ("digits", "iris", "wine", "breast_cancer", "diabetes", "linnerud")
TWO_LAYERS = tuple(f"{name}, two layers" for name in CONVEX)
FUNCTIONS = ("rosenbrock, 2", "rosenbrock, 100", "quadratic")
LONG = ("digits, two layers", "rosenbrock, 2", "rosenbrock, 100")
"""Hundreds of iterations, or nodes that must be compiled first."""


def slow_if_long(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.slow) if name in LONG else name


def started(problem: Problem) -> Reference:
    return Reference(problem, initialise(problem.graph.parameters.values(), 0, dtype="float64"))


@pytest.mark.slow  # its nodes must be compiled
@pytest.mark.parametrize("n", [2, 100])
def test_rosenbrock_as_a_network_is_the_function(n: int) -> None:
    problem = PROBLEMS[f"rosenbrock, {n}"]()
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


@pytest.mark.parametrize("name", [*CONVEX, *map(slow_if_long, TWO_LAYERS), *map(slow_if_long, FUNCTIONS)])
def test_lbfgs_needs_as_many_iterations_as_scipy(name: str) -> None:
    """At its default tolerances, within 15 %; and the loss is as good."""
    problem = PROBLEMS[name]()
    start = started(problem).point
    with played(problem) as function:
        ours = minimise(function, start, LBFGS())
        theirs = by_scipy(function, start, gtol=1e-5, ftol=2.2e-9)
    assert ours.outcome.kind == "converged"
    assert len(ours.iterations) == pytest.approx(theirs.iterations, rel=0.15)
    assert ours.evaluations == pytest.approx(theirs.evaluations, rel=0.15)
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("method", [LBFGS, NonlinearCG])
@pytest.mark.parametrize("name", CONVEX)
def test_a_convex_problem_has_the_minimum_of_scipy_and_of_pytorch(
    name: str, method: type[LineSearchMethod]
) -> None:
    problem = PROBLEMS[name]()
    reference = started(problem)
    start = reference.point
    with played(problem) as function:
        ours = minimise(function, start, method(gtol=1e-7, ftol=0.0))
    assert ours.outcome.kind == "converged"
    scipy = by_scipy(reference.at, start, gtol=1e-7, ftol=0.0)
    reference.move(start)
    pytorch = by_torch(reference, gtol=1e-7)
    assert ours.loss == pytest.approx(scipy.loss, rel=1e-6)
    assert ours.loss == pytest.approx(pytorch.loss, rel=1e-6)
    np.testing.assert_allclose(ours.x, scipy.point, atol=1e-3)
