"""L-BFGS against SciPy's L-BFGS-B: the same minimum, in as many iterations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from partita.engine import LBFGS, NonlinearCG, minimise
from tests.methods.problems import Array, Function, Logistic, examples, network, quadratic, rosenbrock


def both(
    function: Function, start: Array, *, gtol: float, ftol: float, history: int = 10
) -> tuple[float, float]:
    """The losses that SciPy and we come to, in as many iterations."""
    options = {"maxcor": history, "gtol": gtol, "ftol": ftol, "maxiter": 2000, "maxfun": 100_000}
    theirs = minimize(function, start, jac=True, method="L-BFGS-B", options=options)
    ours = minimise(function, start, LBFGS(history=history, gtol=gtol, ftol=ftol, max_iterations=2000))
    assert theirs.success
    assert ours.outcome.kind == "converged"
    assert abs(len(ours.iterations) - theirs.nit) <= max(2, 0.15 * theirs.nit)
    assert abs(ours.evaluations - theirs.nfev) <= max(3, 0.15 * theirs.nfev)
    assert ours.loss == function(ours.x)[0]
    return float(theirs.fun), ours.loss


@pytest.mark.parametrize("n", [2, 10, 30])
@pytest.mark.parametrize(("gtol", "ftol"), [(1e-5, 2.2e-9), (1e-6, 0.0)])
def test_rosenbrock(n: int, gtol: float, ftol: float) -> None:
    theirs, ours = both(rosenbrock, np.tile([-1.2, 1.0], n // 2), gtol=gtol, ftol=ftol)
    assert max(theirs, ours) < 1e-7


@pytest.mark.parametrize(("n", "condition", "history"), [(20, 1e2, 1), (20, 1e2, 5), (30, 1e3, 10)])
def test_quadratic_functions(n: int, condition: float, history: int) -> None:
    function, start, minimum = quadratic(n, condition)
    theirs, ours = both(function, start, gtol=1e-5, ftol=0.0, history=history)
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert ours == pytest.approx(function(minimum)[0], rel=1e-6)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("iris", None),
        ("wine", None),
        ("breast_cancer", None),
        ("digits", 300),
        pytest.param("digits", None, marks=pytest.mark.slow),
    ],
)
def test_logistic_regression(name: str, most: int | None) -> None:
    inputs, targets = examples(name)
    problem = Logistic(inputs[:most], targets[:most])
    theirs, ours = both(problem.mean(1e-3), problem.start, gtol=1e-6, ftol=0.0)
    assert ours == pytest.approx(theirs, rel=1e-6)


def test_a_network_of_two_layers() -> None:
    """The loss is not convex: only almost the same steps reach the same minimum."""
    theirs, ours = both(*network("wine", 8, 1e-3), gtol=1e-5, ftol=2.2e-9)
    assert ours == pytest.approx(theirs, rel=1e-3)


def test_conjugate_gradients_come_to_the_same_minimum() -> None:
    problem = Logistic(*examples("wine"))
    ours = [
        minimise(problem.mean(1e-3), problem.start, method(gtol=1e-7, ftol=0))
        for method in (LBFGS, NonlinearCG)
    ]
    assert [result.outcome.kind for result in ours] == ["converged", "converged"]
    assert ours[1].loss == pytest.approx(ours[0].loss, rel=1e-9)
    np.testing.assert_allclose(ours[1].x, ours[0].x, atol=1e-4)


def test_conjugate_gradients_solve_a_quadratic_function_in_few_steps() -> None:
    """A nearly exact line search needs no more steps than there are directions."""
    function, start, minimum = quadratic(20, 1e2)
    ours = minimise(function, start, NonlinearCG(gtol=1e-6, ftol=0, c2=0.01))
    assert len(ours.iterations) < 30
    np.testing.assert_allclose(ours.x, minimum, atol=1e-5)
