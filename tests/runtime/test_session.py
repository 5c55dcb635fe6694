"""Sessions: local updates, padding, credit, and what happens when a host fails."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from partita.engine import SGD, Adagrad, HostError, Optimizer, Run, Session, predict
from partita.engine.launch import ProcessLauncher
from partita.engine.parameters import UpdateContext, initialise
from partita.engine.run.session import Hosts
from partita.layers import (
    Dense,
    Full,
    LocallyConnected2D,
    Network,
    SoftmaxCrossEntropy,
    node,
    per_edge,
)
from partita.partitioner import Cluster, Plan, Whole, partition


def small(machines: int, *, batch: int = 4) -> Plan:
    net = Network("small")
    picture = net.input("picture", shape=(5, 4, 1))
    hidden = LocallyConnected2D(2, 2, activation="relu", name="hidden")(picture)
    net.loss = SoftmaxCrossEntropy()(Dense(3, name="scores")(hidden), net.target("label"))
    return partition(
        net, Cluster.local(machines=machines), batch=batch, precision="float64", strategy="balanced"
    )


def start(plan: Plan) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    batch = {
        "picture": rng.normal(size=(plan.batch, 5, 4, 1)),
        "label": rng.integers(0, 3, plan.batch),
    }
    return initialise(plan.graph.parameters.values(), 1, dtype="float64"), batch


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adagrad(0.1)])
@pytest.mark.parametrize("machines", [1, 3])
def test_a_rule_changes_parameters_by_their_gradient(optimizer: Optimizer, machines: int) -> None:
    plan = small(machines)
    expected, batch = start(plan)
    flat = {name: array.reshape(-1) for name, array in expected.items()}
    gradients = {name: np.zeros_like(array) for name, array in flat.items()}
    updates = [
        optimizer.bind(array, gradients[name], optimizer.state(array.size, "float64"))
        for name, array in flat.items()
    ]
    with (
        Session(plan, expected, train=True) as still,
        Session(plan, expected, train=True, optimizer=optimizer) as moving,
    ):
        for count in range(3):
            still.load(expected)
            for name, array in still.step(batch, collect=("gradient",)).vectors["gradient"].items():
                gradients[name][:] = array.reshape(-1)
            for update in updates:
                update(UpdateContext(count))
            found = moving.step(batch, collect=("parameters",)).vectors["parameters"]
            for name, array in expected.items():
                np.testing.assert_allclose(found[name], array, rtol=1e-10, atol=1e-12)


def test_only_real_examples_count() -> None:
    plan = small(2)
    parameters, batch = start(plan)
    with Session(plan, parameters) as session:
        first = session.step(batch, examples=1)
        everybody = session.step(batch)
    with Session(small(1, batch=1), parameters) as alone:
        assert first.loss == pytest.approx(
            alone.step({name: array[:1] for name, array in batch.items()}).loss
        )
    assert everybody.loss != first.loss
    assert 0 <= first.correct <= 1


@pytest.mark.parametrize("hosts", ["threads", "processes"])
def test_a_chain_of_machines_predicts_many_batches(hosts: Hosts) -> None:
    """A horizontal cut: nothing flows back, so credit alone keeps the first machine from running away."""
    net = Network("chain")
    states = net.input("x", shape=(6,))
    for n in range(3):
        states = Dense(5, activation="tanh", name=f"layer{n}")(states)
    cuts = {f"layer{n}": Whole(n) for n in range(3)}
    plan = partition(
        net, Cluster.local(machines=3), batch=2, cuts=cuts, precision="float64", strategy="balanced"
    )
    parameters = initialise(plan.graph.parameters.values(), 1, dtype="float64")
    rng = np.random.default_rng(0)
    with Session(plan, parameters, hosts=hosts) as session:
        for _ in range(8):
            x = rng.normal(size=(2, 6))
            found = session.step({"x": x}, collect=("layer2",)).collected["layer2"]
            expected = x.T
            for n in range(3):
                bias = parameters[f"layer{n}.bias"][:, None]
                expected = np.tanh(parameters[f"layer{n}.weight"] @ expected + bias)
            np.testing.assert_allclose(found, expected, rtol=1e-10)


@node(Full(), weight=per_edge())
def stumbles(incoming, weight):  # type: ignore[no-untyped-def]
    """Raises where a state is large."""
    total = 0.0 * incoming[0]
    for k in range(len(incoming)):
        total += weight[k] * incoming[k]
    if incoming[0] > 100.0:
        raise ValueError("more than a hundred")
    return total


@pytest.mark.filterwarnings("ignore::partita.engine.kernels.nodes.errors.SlowNodeWarning")
@pytest.mark.parametrize("hosts", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_an_error_in_a_users_function_names_the_host_and_the_layer(hosts: Hosts) -> None:
    net = Network("clumsy")
    stumbles(2, name="shaky")(net.input("x", shape=(3,)))
    plan = partition(net, Cluster.local(), batch=2)
    parameters = initialise(plan.graph.parameters.values(), 1)
    with Session(plan, parameters, hosts=hosts) as session:
        session.step({"x": np.zeros((2, 3))})
        with pytest.raises(HostError, match="more than a hundred") as failure:
            session.step({"x": np.full((2, 3), 101.0)})
    assert failure.value.host == "part 0.0"
    assert "shaky" in "".join(failure.value.__notes__)


@pytest.mark.slow
def test_an_error_that_comes_in_every_replica_is_the_users() -> None:
    net = Network("clumsy")
    stumbles(2, name="shaky")(net.input("x", shape=(3,)))
    plan = partition(net, Cluster.local(), batch=2)
    run = Run(plan, initialise(plan.graph.parameters.values(), 1))
    with pytest.raises(HostError, match=r"part .\.0 failed 3 times: .*more than a hundred") as failure:
        predict(run, {"x": np.full((8, 3), 101.0)}, replicas=2)
    assert "shaky" in "".join(failure.value.__notes__)


def test_a_killed_host_ends_the_session() -> None:
    plan = small(2)
    parameters, batch = start(plan)
    with Session(plan, parameters, hosts="processes") as session:
        session.step(batch)
        assert isinstance(session.launcher, ProcessLauncher)
        os.kill(session.launcher.pid("part 0.1"), signal.SIGKILL)
        with pytest.raises(HostError, match="its process was ended by SIGKILL"):
            session.step(batch)


def test_what_does_not_fit_is_refused_before_it_is_played() -> None:
    plan = small(2)
    parameters, batch = start(plan)
    wrong = [
        ({}, {}, "no 'picture'"),
        ({**batch, "picture": batch["picture"].transpose(0, 2, 1, 3)}, {}, "has shape"),
        ({**batch, "label": batch["label"] + 0.9}, {}, "whole numbers"),
        ({name: array[:3] for name, array in batch.items()}, {}, "has 3 examples"),
        (batch, {"examples": 9}, "9 examples of a batch of 4"),
        (batch, {"collect": ("picture",)}, "cannot collect 'picture'"),
        (batch, {"collect": "gradient"}, "cannot collect 'g'; give a tuple"),
        (None, {}, "no last batch"),
    ]
    with Session(plan, parameters) as session:
        for given, settings, text in wrong:
            with pytest.raises(ValueError, match=text):
                session.step(given, **settings)  # type: ignore[arg-type]
        assert np.isfinite(session.step(batch).loss)
    with Session(plan, parameters, train=True) as session, pytest.raises(ValueError, match="give 4 to 4"):
        session.step(batch, examples=2)
