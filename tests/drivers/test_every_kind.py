"""Every kind of layer through whole runs: cut, resumed, in bfloat16, and under each family of drivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.engine import (
    LBFGS,
    SGD,
    AllReduce,
    Downpour,
    Momentum,
    Sandblaster,
    Session,
    evaluate,
    predict,
    train,
)
from partita.engine.parameters import initialise
from partita.layers import Network
from partita.partitioner import Cluster, Plan, partition
from tests.every_kind import examples_of, kinds, pictures, sequences

NETWORKS = {"sequences": sequences, "pictures": pictures}
BOTH = pytest.mark.parametrize("name", NETWORKS)


def plan_of(net: Network, machines: int = 1, **settings: Any) -> Plan:
    settings = {"batch": 8, "precision": "float64", **settings}
    return partition(net, Cluster.local(machines), strategy="balanced", **settings)


def trained(plan: Plan, *, driver: Any = None, epochs: int = 2, **settings: Any) -> Any:
    driver = driver or AllReduce(optimizer=Momentum(0.1))
    data = examples_of(plan.graph, 24)
    return train(plan, data, driver=driver, epochs=epochs, show="nothing", seed=3, **settings)


def test_no_kind_is_forgotten() -> None:
    used = {type(grid.layer) for declare in NETWORKS.values() for grid in declare().graph().computed}
    assert kinds() - used == set()


def step_of(plan: Plan) -> Any:
    """A training step from given parameters."""
    parameters = initialise(plan.graph.parameters.values(), 3, dtype="float64")
    with Session(plan, parameters, train=True, hosts="threads") as session:
        return session.step(examples_of(plan.graph, 8), collect=("gradient",))


@pytest.mark.parametrize("name", [pytest.param("pictures", marks=pytest.mark.slow), "sequences"])
def test_a_cut_step_is_the_whole_step(name: str) -> None:
    """In float64: all gradients over three machines."""
    one, other = (step_of(plan_of(NETWORKS[name](), machines)) for machines in (1, 3))
    assert one.loss == pytest.approx(other.loss, rel=1e-12)
    for parameter, values in one.vectors["gradient"].items():
        found = other.vectors["gradient"][parameter]
        np.testing.assert_allclose(found, values, rtol=1e-9, atol=1e-12, err_msg=parameter)


@pytest.mark.slow
@BOTH
def test_bfloat16_stays_near(name: str) -> None:
    """The loss of a step is within a few units of rounding, and every gradient is finite."""
    step = step_of(plan_of(NETWORKS[name](), precision="bfloat16"))
    assert step.loss == pytest.approx(step_of(plan_of(NETWORKS[name]())).loss, rel=0.05)
    assert all(np.isfinite(values).all() for values in step.vectors["gradient"].values())


@pytest.mark.slow
@BOTH
def test_a_cut_run_is_the_whole_run(name: str, on_threads: object) -> None:
    """In float64, three machines and two micro-batches, as far as the moments of examples do not count."""
    options = {"pictures": {"norm": False}}.get(name, {})
    one, other = (
        trained(plan_of(NETWORKS[name](**options), machines, micro_batches=machines - 1 or 1))
        for machines in (1, 3)
    )
    for parameter, values in one.parameters.items():
        found = other.parameters[parameter]
        np.testing.assert_allclose(found, values, rtol=1e-8, atol=1e-10, err_msg=parameter)
    data = examples_of(one.plan.graph, 7)
    assert evaluate(one, data).loss == pytest.approx(evaluate(other, data).loss, rel=1e-10)


@pytest.mark.slow
@BOTH
def test_a_resumed_run_has_the_bits_of_one_that_was_not(
    name: str, on_threads: object, tmp_path: Path
) -> None:
    """Masks of dropout and running averages, too."""
    plan = plan_of(NETWORKS[name](), 2, precision="float32")
    straight = trained(plan)
    trained(plan, epochs=1, checkpoints=tmp_path)
    again = trained(plan, checkpoints=tmp_path, resume=True)
    for parameter, values in straight.parameters.items():
        np.testing.assert_array_equal(again.parameters[parameter], values, err_msg=parameter)


@pytest.mark.slow
@BOTH
def test_sandblaster_lowers_the_loss(name: str, on_threads: object) -> None:
    options = {"pictures": {"norm": False}}.get(name, {})
    plan = plan_of(NETWORKS[name](**options), 2)
    data = examples_of(plan.graph, 24)
    run = train(plan, data, driver=Sandblaster(method=LBFGS(max_iterations=4)), show="nothing", seed=3)
    assert evaluate(run, data).loss < 0.9  # guessing has log(3)


@pytest.mark.slow
@BOTH
def test_one_row_and_one_example(name: str, on_threads: object) -> None:
    """Layers of one row, cut over more machines than that, with a batch of one."""
    smallest = {"sequences": {"positions": 1, "units": 2}, "pictures": {"height": 1}}[name]
    plan = plan_of(NETWORKS[name](**smallest), 3, batch=1)
    run = trained(plan, driver=Downpour(optimizer=SGD(0.01)), epochs=1)
    assert all(np.isfinite(values).all() for values in run.parameters.values())
    data = examples_of(plan.graph, 2)
    del data["y"]
    assert predict(run, data).shape == (2, 3)
