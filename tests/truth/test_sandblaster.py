"""Sandblaster over replicas and shards, against SciPy's L-BFGS-B on the same problem, in float64."""

from __future__ import annotations

import pytest

from benchmarks._batch_problems import PROBLEMS
from benchmarks._batch_references import Reference, by_scipy
from partita.engine import LBFGS, Iteration, Run, Sandblaster, train
from partita.engine.parameters import initialise
from partita.partitioner import Cluster, partition
from tests.drivers.conftest import run_on_threads

TIGHT = {"gtol": 1e-7, "ftol": 0.0}
USUAL = {"gtol": 1e-5, "ftol": 2.2e-9}
PORTIONS = {"digits": 300, "breast_cancer": 100, "diabetes": 100}


def trained(name: str, *, portion: int, machines: int = 1, **limits: float) -> Run:
    problem = PROBLEMS[name]()
    cluster = Cluster.local(machines)
    plan = partition(
        problem.network, cluster, batch=portion, precision="float64", strategy="balanced", micro_batches=1
    )
    driver = Sandblaster(LBFGS(**limits), replicas=2, shards=2, l2=problem.l2)
    return train(plan, problem.data, driver=driver, show="nothing")


def last_of(run: Run) -> Iteration:
    last = run.history[-1]
    assert isinstance(last, Iteration)
    return last


def check_against_scipy(name: str, run: Run, *, rel: float, abs: float = 0.0, **limits: float) -> None:
    problem = PROBLEMS[name]()
    parameters = problem.graph.parameters.values()
    reference = Reference(problem, initialise(parameters, 0, dtype="float64"))
    theirs = by_scipy(reference.at, reference.point, **limits)
    last = last_of(run)
    assert last.loss == pytest.approx(theirs.loss, rel=rel, abs=abs)
    assert last.iteration == pytest.approx(theirs.iterations, rel=0.15)
    assert run.outcome is not None and run.outcome.kind == "converged"
    found = Reference(problem, run.parameters)()
    assert last.loss == pytest.approx(found.item(), rel=1e-10, abs=1e-12)


def test_two_replicas_of_two_machines_find_the_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs on threads; 178 examples are three portions and a part of one."""
    run_on_threads(monkeypatch)
    run = trained("wine", portion=50, machines=2, **TIGHT)
    check_against_scipy("wine", run, rel=1e-6, **TIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "iris", "breast_cancer", "diabetes", "linnerud"])
def test_convex_problems_over_processes(name: str) -> None:
    """Reaches the minimum that SciPy finds at a tighter tolerance."""
    check_against_scipy(name, trained(name, portion=PORTIONS.get(name, 19), **TIGHT), rel=1e-6, **TIGHT)


@pytest.mark.slow
def test_two_layers_over_processes() -> None:
    """The network needs few iterations: rounding decides when hundreds end, also for SciPy."""
    name = "wine, two layers"
    check_against_scipy(name, trained(name, portion=50, **USUAL), rel=1e-3, **USUAL)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rosenbrock 2", "rosenbrock 100", "quadratic"])
def test_functions_as_networks_over_processes(name: str) -> None:
    check_against_scipy(name, trained(name, portion=1, **USUAL), rel=1e-3, abs=1e-6, **USUAL)
