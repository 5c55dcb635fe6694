"""Two functions of a user, in NumPy and in PyTorch, against the same steps by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from examples.reproduce.two_functions import first_parameters, gradients, outputs, pictures
from partita.engine import SGD, AllReduce, DistBelief, Downpour
from partita.engine.runtime.feed import Sampler
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

    def slopes(parameters: Any, batch: Any) -> Any:
        w = parameters["w"].detach().requires_grad_()
        loss = (scores({"w": w}, batch) - batch["y"]).square().mean() / 2
        with torch.enable_grad():
            (found,) = torch.autograd.grad(loss, [w])
        return {"w": found}

    def by_autograd(parameters: Any, batch: Any) -> Any:
        with torch.enable_grad():
            return slopes(parameters, batch)

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
