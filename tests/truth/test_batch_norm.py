"""BatchNorm: PyTorch's module over the whole, under any cut; and its running statistics, by every driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from partita.engine import SGD, Adagrad, AllReduce, Downpour, Sandblaster, Session, train
from partita.engine.parameters import initialise
from partita.layers import BatchNorm, Dense, Layer, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, RowSplit, partition
from tests.drivers.conftest import WatchedThreads, on_threads  # noqa: F401 - a fixture
from tests.truth.interleaved import InterleavedReplica
from tests.truth.test_summaries import BATCH, CUTS, expected, plan_of

RUNNING = ("running_mean", "running_variance")
NORM: Layer = BatchNorm(momentum=0.25, name="norm")


def module_of(parameters: dict[str, Any]) -> torch.nn.BatchNorm2d:
    """PyTorch's module with these running statistics."""
    module = torch.nn.BatchNorm2d(4, momentum=0.25, dtype=torch.float64)
    for name, buffer in zip(RUNNING, (module.running_mean, module.running_var), strict=True):
        assert buffer is not None
        buffer.copy_(torch.from_numpy(parameters[f"norm.{name}"]))
    return module


def drawn(graph: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and a batch."""
    draw = np.random.default_rng(5)
    parameters = initialise(graph.parameters.values(), 3, dtype="float64")
    parameters = {name: array + draw.uniform(size=array.shape) / 4 for name, array in parameters.items()}
    return parameters, {"x": draw.normal(size=(BATCH, 5, 4, 2)), "y": draw.normal(size=(BATCH, 3, 2, 2))}


@pytest.mark.parametrize("cuts", CUTS)
def test_a_step_equals_pytorch_under_any_cut(cuts: str) -> None:
    """Output and gradients; the running statistics whatever the optimizer is."""
    plan = plan_of(NORM, cuts)
    parameters, batch = drawn(plan.graph)
    module = module_of(parameters)
    output, gradients = expected(module, parameters, batch)
    optimizer = Adagrad(0.1, weight_decay=0.1, clip_norm=0.01)
    with Session(plan, parameters, train=True, optimizer=optimizer) as session:
        step = session.step(batch, collect=("norm", "gradient", "parameters"))
    np.testing.assert_allclose(step.collected["norm"], output, rtol=1e-10, atol=1e-12)
    for name, gradient in gradients.items():
        found = step.vectors["gradient"][name].reshape(gradient.shape)
        np.testing.assert_allclose(found, gradient, rtol=1e-9, atol=1e-11, err_msg=name)
    for name, buffer in zip(RUNNING, (module.running_mean, module.running_var), strict=True):
        found = step.vectors["parameters"][f"norm.{name}"]
        np.testing.assert_allclose(found, buffer, rtol=1e-11, err_msg=name)
    with Session(plan, parameters, train=False) as session:
        found = session.step(batch, collect=("norm",)).collected["norm"]
    at_rest, _ = expected(module_of(parameters).eval(), parameters, batch)
    np.testing.assert_allclose(found, at_rest, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("cuts", CUTS)
def test_frozen_statistics_are_those_of_a_module_in_eval(cuts: str) -> None:
    """In training, too; they keep their values, and machines exchange none."""
    plan = plan_of(BatchNorm(frozen_statistics=True, name="norm"), cuts)
    parameters, batch = drawn(plan.graph)
    output, gradients = expected(module_of(parameters).eval(), parameters, batch)
    with Session(plan, parameters, train=True, optimizer=SGD(0.1)) as session:
        step = session.step(batch, collect=("norm", "parameters"))
    np.testing.assert_allclose(step.collected["norm"], output, rtol=1e-10, atol=1e-12)
    for name, gradient in gradients.items():
        learnt = parameters[name].reshape(gradient.shape) - 0.1 * gradient
        found = step.vectors["parameters"][name].reshape(gradient.shape)
        np.testing.assert_allclose(found, learnt, rtol=1e-9, atol=1e-11, err_msg=name)
    for name in (f"norm.{one}" for one in RUNNING):
        np.testing.assert_array_equal(step.vectors["parameters"][name], parameters[name])
    assert not any("summary" in str(one) for one in plan.messages if one.layer == "norm")


def network() -> Network:
    net = Network("running")
    normal = BatchNorm(momentum=0.2, name="norm")(net.input("x", shape=(6,)))
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(3, name="scores")(normal), net.target("y"))
    return net


@pytest.mark.parametrize(
    "driver", [Downpour(optimizer=SGD(0.1)), AllReduce(optimizer=Adagrad(0.1), replicas=2)]
)
def test_a_step_takes_the_mean_of_the_replicas_statistics(
    driver: Any,
    on_threads: list[WatchedThreads],  # noqa: F811
) -> None:
    draw, n = np.random.default_rng(0), 20 * driver.replicas
    data = {"x": draw.normal(3.0, 2.0, size=(n, 6)), "y": draw.integers(0, 3, (n, 1))}
    plan = partition(network(), Cluster.local(), batch=20)
    run = train(plan, data, driver=driver, epochs=1, show="nothing", seed=1)
    np.testing.assert_allclose(run.parameters["norm.running_mean"], 0.2 * data["x"].mean(0), rtol=1e-5)


def test_running_statistics_become_those_of_the_data(
    on_threads: list[WatchedThreads],  # noqa: F811
) -> None:
    driver = Downpour(optimizer=Adagrad(0.1), replicas=3, shards=2)
    draw = np.random.default_rng(0)
    data = {"x": draw.normal(3.0, 2.0, size=(480, 6)), "y": draw.integers(0, 3, (480, 1))}
    cuts = {"norm": RowSplit(2), "scores": RowSplit(2)}
    plan = partition(network(), Cluster.local(2), batch=20, cuts=cuts)
    run = train(plan, data, driver=driver, epochs=4, show="nothing", seed=1)
    mean, variance = (run.parameters[f"norm.{name}"] for name in RUNNING)
    np.testing.assert_allclose(mean, data["x"].mean(0), atol=0.5)
    np.testing.assert_allclose(variance, data["x"].var(0), rtol=0.4)


def test_batch_methods_refuse_running_averages() -> None:
    plan = partition(network(), Cluster.local(), batch=20)
    data = {"x": np.zeros((20, 6)), "y": np.zeros((20, 1), int)}
    with pytest.raises(ValueError, match=r"norm.running_mean, norm.running_variance are running averages"):
        train(plan, data, driver=Sandblaster(), show="nothing")


def test_examples_that_fill_a_minibatch_do_not_count() -> None:
    plan = partition(network(), Cluster.local(), batch=4, precision="float64")
    parameters = initialise(plan.graph.parameters.values(), 3, dtype="float64")
    draw = np.random.default_rng(2)
    batch = {"x": draw.normal(2.0, size=(4, 6)), "y": draw.integers(0, 3, (4, 1))}
    replica = InterleavedReplica(plan, parameters, seed=1, optimizer=SGD(0.1))
    changed, real = replica.step(batch, examples=3).parameters, batch["x"][:3]
    np.testing.assert_allclose(changed["norm.running_mean"], 0.2 * real.mean(0))
    np.testing.assert_allclose(changed["norm.running_variance"], 0.8 + 0.2 * real.var(0, ddof=1))
