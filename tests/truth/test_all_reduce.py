"""Synchronous training by all-reduce over processes, against one process of torch on the joined batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from partita.engine import SGD, Adagrad, Adam, AllReduce, Hierarchical, Optimizer, Ring, Server, Tree, train
from partita.engine.runtime.buffers import shared_layers
from partita.partitioner import Cluster, Plan, partition
from tests.drivers.conftest import run_on_threads
from tests.truth.joined import picture_data, picture_network, trained_alone

EXAMPLES, EPOCHS = 22, 2
ALGORITHMS: list[Any] = [Ring(), Tree(), Hierarchical(), Server()]


def plan_of(machines: int, batch: int) -> Plan:
    cluster = Cluster.local(machines=machines)
    plan = partition(picture_network(), cluster, batch=batch, precision="float64", strategy="balanced")
    assert bool(shared_layers(plan, 0)) == (machines > 1), "the filters are cut over the machines"
    return plan


def assert_true(driver: AllReduce, plan: Plan) -> None:
    """Also in the last step of an epoch, where one replica has fewer examples and another one none."""
    run = train(plan, picture_data(EXAMPLES), driver=driver, epochs=EPOCHS, show="nothing")
    joined = driver.replicas * plan.batch
    assert run.steps == (EPOCHS * -(-EXAMPLES // joined),) * driver.replicas
    expected = trained_alone(plan, picture_data(EXAMPLES), driver.optimizer, batch=joined, epochs=EPOCHS)
    for name, numbers in expected.items():
        np.testing.assert_allclose(run.parameters[name], numbers, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("by", ALGORITHMS, ids=repr)
def test_every_algorithm_is_one_process_on_the_joined_batch(by: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run_on_threads(monkeypatch)
    assert_true(AllReduce(replicas=3, by=by, optimizer=Adagrad(0.05)), plan_of(2, 4))


@pytest.mark.slow
def test_processes_are_one_process_on_the_joined_batch() -> None:
    assert_true(AllReduce(replicas=2, optimizer=Adam(0.01)), plan_of(1, 5))


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 2])
@pytest.mark.parametrize("by", ALGORITHMS, ids=repr)
@pytest.mark.parametrize("optimizer", [SGD(0.1, clip_norm=0.4), Adagrad(0.05), Adam(0.01)], ids=repr)
def test_all_of_it_over_processes(machines: int, by: Any, optimizer: Optimizer) -> None:
    assert_true(AllReduce(replicas=3, by=by, optimizer=optimizer), plan_of(machines, 4))


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 2])
def test_a_sharded_optimizer_over_processes_has_the_bits_of_a_whole_one(machines: int) -> None:
    runs = [
        train(
            plan_of(machines, 4),
            picture_data(EXAMPLES),
            driver=AllReduce(replicas=3, optimizer=Adam(0.01), shard_optimizer=sharded),
            epochs=EPOCHS,
            show="nothing",
        )
        for sharded in (False, True)
    ]
    for name, numbers in runs[0].parameters.items():
        assert runs[1].parameters[name].tobytes() == numbers.tobytes(), name
