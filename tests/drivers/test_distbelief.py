"""Two functions of a user, in NumPy and in PyTorch, against the same steps by hand."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from examples.reproduce.two_functions import first_parameters, gradients, outputs, pictures
from partita.engine import SGD, AllReduce, DistBelief, Downpour, HostError, Session
from partita.engine.run.user_functions import UserFunctions, fields_of, network_of
from partita.engine.runtime.feed import Sampler
from partita.partitioner import Cluster, partition
from tests.drivers.conftest import WatchedThreads

EXAMPLES, BATCH, RATE = 150, 32, 0.2


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return {name: values[:EXAMPLES] for name, values in pictures()[0].items()}


def by_hand(data: dict[str, Any], *, epochs: int) -> dict[str, Any]:
    sampler, w = Sampler(examples=EXAMPLES, batch=BATCH, seed=0), first_parameters()
    for step in range(epochs * -(-EXAMPLES // BATCH)):
        chosen = sampler.indices(step)
        found = gradients(w, {name: values[chosen] for name, values in data.items()})
        w = {name: values - np.float32(RATE) * found[name].astype(np.float32) for name, values in w.items()}
    return w


def test_one_machine_makes_the_steps_of_plain_gradient_descent(
    on_threads: list[WatchedThreads], data: dict[str, Any]
) -> None:
    """The last minibatch of an epoch is smaller than the others."""
    model = DistBelief(outputs, gradients).fit(
        first_parameters(), data, batch=BATCH, epochs=2, driver=Downpour(optimizer=SGD(RATE)), show="nothing"
    )
    for name, values in by_hand(data, epochs=2).items():
        np.testing.assert_allclose(model.parameters[name], values, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(model.predict(data), outputs(model.parameters, data))


def test_two_machines_train_by_any_driver(on_threads: list[WatchedThreads], data: dict[str, Any]) -> None:
    def mean_loss(parameters: Any) -> float:
        found = outputs(parameters, data)[np.arange(EXAMPLES), data["digit"]]
        return float(-np.log(found).mean())

    driver = AllReduce(replicas=2, optimizer=SGD(RATE))
    model = DistBelief(outputs, gradients, machines=2)
    model.fit(first_parameters(), data, batch=16, epochs=4, driver=driver, show="nothing")
    assert mean_loss(model.parameters) < 0.8 * mean_loss(first_parameters())


def test_functions_of_pytorch_get_tensors(on_threads: list[WatchedThreads]) -> None:
    import torch

    draw = np.random.default_rng(0)
    data = {
        "x": draw.normal(size=(24, 2, 3)).astype(np.float32),
        "y": draw.normal(size=24).astype(np.float32),
    }

    def scores(parameters: Any, batch: Any) -> Any:
        return (batch["x"] * parameters["w"]).sum((1, 2))

    def by_autograd(parameters: Any, batch: Any) -> Any:
        w = parameters["w"].requires_grad_()
        ((scores({"w": w}, batch) - batch["y"]).square().mean() / 2).backward()
        return {"w": w.grad}

    driver = Downpour(optimizer=SGD(0.1))
    model = DistBelief(scores, by_autograd)
    first = {"w": torch.nn.Parameter(torch.zeros(2, 3))}
    model.fit(first, data, batch=24, epochs=3, driver=driver, show="nothing")
    w, x, y = np.zeros(6), data["x"].reshape(24, 6).astype(float), data["y"].astype(float)
    for _ in range(3):
        w -= 0.1 * x.T @ (x @ w - y) / 24
    assert isinstance(model.parameters["w"], torch.Tensor)
    np.testing.assert_allclose(model.parameters["w"].ravel(), w, rtol=1e-4, atol=1e-6)


def test_mistakes(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="outputs is None; give a function"):
        DistBelief(None, gradients)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="machines are 0"):
        DistBelief(outputs, gradients, machines=0)
    with pytest.raises(ValueError, match="at least one parameter"):
        DistBelief(outputs, gradients).fit({}, data)
    with pytest.raises(RuntimeError, match="not trained yet"):
        DistBelief(outputs, gradients).predict(data)


def line(parameters: Any, batch: Any) -> Any:
    """A line through 0, whose one parameter is a scalar."""
    return batch["x"] * parameters["slope"]


def slopes(parameters: Any, batch: Any) -> Any:
    assert len(batch["x"]), "a mean over no examples is no number"
    assert not parameters["slope"].flags.writeable
    return {"slope": ((line(parameters, batch) - batch["y"]) * batch["x"]).mean()}


def test_scalars_in_float64_and_replicas_without_examples(on_threads: list[WatchedThreads]) -> None:
    """At the end of an epoch the joined batch has one example for two replicas."""
    x = np.arange(1.0, 6.0)
    data, driver = {"x": x, "y": 3 * x}, AllReduce(replicas=2, optimizer=SGD(0.02))
    model = DistBelief(line, slopes)
    model.fit({"slope": np.float64(0)}, data, batch=2, precision="float64", driver=driver, show="nothing")
    by_hand = 0.0
    for chosen in (order := joined(5, 4)):
        by_hand -= 0.02 * np.mean((by_hand * x[chosen] - 3 * x[chosen]) * x[chosen])
    assert [len(chosen) for chosen in order] == [4, 1]
    assert model.parameters["slope"].shape == () and model.parameters["slope"] == pytest.approx(by_hand)


def joined(examples: int, batch: int) -> list[Any]:
    sampler = Sampler(examples=examples, batch=batch, seed=0)
    return [sampler.indices(step) for step in range(-(-examples // batch))]


def test_mistakes_in_functions_are_named() -> None:
    big = {"x": np.ones(2), "y": np.array([1, 1 << 24 | 1])}
    with pytest.raises(ValueError, match="'y' has whole numbers beyond 16,777,216, which float32 does not"):
        DistBelief(line, slopes).fit({"slope": np.ones(())}, big)
    with pytest.raises(ValueError, match=r"has returned the shape \(\) for 2 examples; return the examples"):
        DistBelief(lambda *_: np.ones(()), slopes).fit({"slope": np.ones(())}, {"x": np.ones(2)})


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda *_: [np.ones(())], "has returned list; return a dictionary of ['slope']"),
        (lambda *_: {"slope": None}, "has returned no 'slope'; return ['slope']"),
        (lambda p, _: {"slope": p["slope"].mul_(2)}, "has changed 'slope' in place; work on a copy"),
        (lambda *_: {"slope": np.ones(3)}, "the gradient of 'slope' is (3,), and the parameter is ()"),
    ],
)
def test_what_gradients_returns_is_checked(function: Any, sentence: str) -> None:
    fields, first = fields_of({"x": np.ones(2)}, "float32"), {"slope": np.zeros((), np.float32)}
    layer = UserFunctions(line, function, first, fields, 1, in_torch=True)
    plan = partition(network_of(layer), Cluster.local(), batch=2)
    refused = pytest.raises(HostError, match=re.escape(sentence))
    with Session(plan, 0, train=True, hosts="inline") as session, refused:
        session.step({"x": np.ones((2, 1))})
