"""`evaluate` and `predict`: batches, the one that is not full, and what they refuse."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from partita.engine import HostError, Outcome, Run, Session, evaluate, predict
from partita.engine.launch import ProcessLauncher
from partita.engine.parameters import initialise
from partita.engine.run.minibatches import Minibatches, SharedSession
from partita.layers import Dense, HalfSquaredError, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition
from tests.faults import toy


def run_of_toy(*, machines: int, batch: int) -> Run:
    plan = partition(toy.network(), Cluster.local(machines=machines), batch=batch, strategy="balanced")
    return Run(plan, initialise(plan.graph.parameters.values(), 0, dtype="float32"))


def test_the_last_batch_counts_as_far_as_it_is_real() -> None:
    data = {name: array[:75] for name, array in toy.data().items()}
    scores = predict(run_of_toy(machines=1, batch=75), data)
    assert isinstance(scores, np.ndarray) and scores.shape == (75, 3)
    stable = scores - scores.max(axis=1, keepdims=True)
    losses = np.log(np.exp(stable).sum(axis=1)) - stable[np.arange(75), data["digit"]]
    for machines, batch in ((1, 75), (2, 32), (3, 200)):
        run = run_of_toy(machines=machines, batch=batch)
        found = evaluate(run, data)
        assert found.examples == 75
        assert found.loss == pytest.approx(losses.mean(), rel=1e-5)
        assert found.accuracy == pytest.approx((scores.argmax(axis=1) == data["digit"]).mean())
        np.testing.assert_allclose(
            np.asarray(predict(run, {"picture": data["picture"]})), scores, rtol=1e-4, atol=1e-6
        )
    assert str(found) == f"loss {found.loss:.4f}, accuracy {found.accuracy:.3f} on 75 examples"


def test_what_is_no_run_is_named() -> None:
    run, data = run_of_toy(machines=1, batch=32), toy.data()
    for other in (run.plan, run.parameters, toy.network(), "run.safetensors"):
        with pytest.raises(
            ValueError, match=r"evaluate takes a run, .* a \w+; give what train returns, or Run"
        ):
            evaluate(other, data)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="predict takes a run"):
            predict(other, data)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the parameters are a Run; give a dictionary of arrays by name"):
        Session(run.plan, run)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the plan is a Network; partition the network first"):
        Run.load("run.safetensors", toy.network())  # type: ignore[arg-type]


def test_a_run_is_shown_in_one_line() -> None:
    run = run_of_toy(machines=2, batch=32)
    assert repr(run) == "Run(toy: 147 parameters, 2 machines)"
    done = replace(run, steps=(3, 4), seconds=1.25, iterations=1, outcome=Outcome("converged", "It is."))
    assert repr(done) == "Run(toy: 147 parameters, 2 machines; 7 steps and 1 iteration in 1.2 s)"


def test_a_regression_has_an_error_in_the_unit_of_its_target_and_no_accuracy() -> None:
    net, rng = Network("lines"), np.random.default_rng(0)
    net.loss = HalfSquaredError()(Dense(3, name="scores")(net.input("x", shape=4)), net.target("y"))
    plan = partition(net, Cluster.local(machines=1), batch=8, strategy="balanced")
    run = Run(plan, initialise(plan.graph.parameters.values(), 0, dtype="float32"))
    data = {"x": rng.normal(size=(20, 4)), "y": rng.normal(size=(20, 3))}
    found, scores = evaluate(run, data, hosts="inline"), np.asarray(predict(run, data, hosts="inline"))
    assert found.rms_error == pytest.approx(np.sqrt(((scores - data["y"]) ** 2).mean()), rel=1e-5)
    shown = f"loss {found.loss:.4f}, root mean square error {found.rms_error:.4g} on 20 examples"
    assert str(found) == shown and np.isnan(found.accuracy)
    one = {name: array[:1] for name, array in data.items()}
    assert str(evaluate(run, one, hosts="inline")).endswith("on 1 example")


def test_processes_give_what_threads_give() -> None:
    run, data = run_of_toy(machines=2, batch=128), toy.data()
    threads, processes = predict(run, data), predict(run, data, hosts="processes")
    assert isinstance(threads, np.ndarray)
    assert threads.tobytes() == np.asarray(processes).tobytes()


def test_replicas_share_minibatches_with_the_same_bits() -> None:
    run, data = run_of_toy(machines=2, batch=16), toy.data(150)
    alone, scores = evaluate(run, data), np.asarray(predict(run, data))
    for replicas in (2, 3):
        assert evaluate(run, data, replicas=replicas) == alone
        assert np.asarray(predict(run, data, replicas=replicas)).tobytes() == scores.tobytes()
    with pytest.raises(ValueError, match="there are 2 replicas; give 'threads' or 'processes'"):
        evaluate(run_of_toy(machines=1, batch=16), data, replicas=2, hosts="inline")
    with pytest.raises(ValueError, match="replicas is 0"):
        predict(run, data, replicas=0)


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["part 0.1", "part 1.0"])
def test_minibatches_of_a_killed_host_are_done_by_another_replica(
    killed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, data, batch_of = run_of_toy(machines=2, batch=4), toy.data(200), Minibatches.batch
    given, phases, kills = Minibatches(data, 4), list[str](), list[int]()
    with Session(run.plan, run.parameters) as session:
        alone = [session.step(batch_of(given, n)).loss for n in range(len(given))]

    def batch(self: Minibatches, number: int) -> dict[str, np.ndarray]:
        if number == 10 and not kills:  # both replicas have minibatches, and there are more
            assert isinstance(shared.launcher, ProcessLauncher)
            kills.append(shared.launcher.pid(killed))
            os.kill(kills[0], signal.SIGKILL)
        return batch_of(self, number)

    monkeypatch.setattr(Minibatches, "batch", batch)
    settings = {"hosts": "processes", "replicas": 2, "show": phases.append}
    with SharedSession(run.plan, run.parameters, given=given, **settings) as shared:  # type: ignore[arg-type]
        assert [step.loss for step, _ in shared.steps()] == alone
    replica = killed.split()[1][0]
    assert any(f"replica {replica} is started again" in phase for phase in phases), phases


def test_without_a_loss_there_is_nothing_to_evaluate() -> None:
    net = Network("scores-only")
    Dense(3, name="scores")(net.input("picture", shape=(8,)))
    plan = partition(net, Cluster.local(machines=1), batch=4, strategy="balanced")
    run = Run(plan, initialise(plan.graph.parameters.values(), 0, dtype="float32"))
    with pytest.raises(ValueError, match="network 'scores-only' has no loss to evaluate; use predict"):
        evaluate(run, toy.data())


def test_parameters_that_are_missing_are_named() -> None:
    run = run_of_toy(machines=2, batch=4)
    parameters = {name: values for name, values in run.parameters.items() if name != "scores.bias"}
    with pytest.raises(ValueError, match=r"no 'scores\.bias'; give all of"):
        Session(run.plan, parameters)
    with pytest.raises(ValueError, match=r"do not fit the network: 'scores\.bias' is \(5,\), and \(3,\) in"):
        Session(run.plan, {**parameters, "scores.bias": np.zeros(5)})


def test_predict_ignores_targets_and_refuses_unknown_names() -> None:
    run, data = run_of_toy(machines=1, batch=32), toy.data(32)
    found, expected = predict(run, data), predict(run, {"picture": data["picture"]})
    assert np.array_equal(np.asarray(found), np.asarray(expected))
    with pytest.raises(ValueError, match="the data has 'pictures', but the network takes 'picture'; rename"):
        predict(run, data | {"pictures": data["picture"]})


def test_hosts_that_take_too_long_are_named() -> None:
    run = run_of_toy(machines=2, batch=32)
    silent = "no sign of life for 0 s while (importing|setting up its task.*); .* or allow more by timeout_s"
    with pytest.raises(HostError, match=silent):
        evaluate(run, toy.data(), timeout_s=1e-9)
    with pytest.raises(HostError, match=silent):
        predict(run, toy.data(), timeout_s=1e-9)


def test_what_a_session_cannot_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of_toy(machines=2, batch=4)
    with pytest.raises(ValueError, match="hosts is 'thread'; give one of 'inline', 'threads', 'processes'"):
        predict(run, toy.data(), hosts="thread")  # type: ignore[arg-type]
    monkeypatch.setattr("partita.engine.run.session.MAX_PAYLOAD", 64)
    with pytest.raises(ValueError, match=r"machine 0 holds .* that one message carries; use more machines"):
        predict(run, toy.data())


def test_accuracy_over_two_losses_is_their_mean() -> None:
    net = Network("twice")
    picture = net.input("picture", shape=(8,))
    for name in ("first", "second"):
        scores = Dense(3, name=f"{name}_scores")(picture)
        net.loss = (*net.loss, SoftmaxCrossEntropy()(scores, net.target(name)))
    plan = partition(net, Cluster.local(machines=2), batch=16, strategy="balanced")
    run = Run(plan, initialise(plan.graph.parameters.values(), 0, dtype="float32"))
    rng = np.random.default_rng(0)
    inputs = {"picture": rng.normal(size=(40, 8))}
    scores_of = predict(run, inputs)
    assert isinstance(scores_of, dict)
    right = {name: scores_of[f"{name}_scores"].argmax(axis=1) for name in ("first", "second")}
    assert evaluate(run, {**inputs, **right}).accuracy == 1.0
    assert evaluate(run, {**inputs, **right, "second": (right["second"] + 1) % 3}).accuracy == 0.5
