"""A module of PyTorch as a layer: it trains as it does alone, on any number of machines, and comes back."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from partita.engine import SGD, Downpour, Session, Torch, train
from partita.engine.parameters import initialise
from partita.layers import Conv2D, Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, partition
from tests.drivers.conftest import WatchedThreads, on_threads  # noqa: F401 - a fixture
from tests.pytorch.modules import Language, Residual

BATCH = 6


def picture_network(module: nn.Module) -> Network:
    net = Network("pictures")
    picture = net.input("picture", shape=(5, 4, 2))
    block = Torch(module, name="block")(Conv2D(3, kernel_size=3, padding="same", name="stem")(picture))
    net.loss = SoftmaxCrossEntropy()(Dense(4, name="scores")(block), net.target("class"))
    return net


def plan_of(net: Network, machines: int, *, precision: str = "float64", **settings: Any) -> Plan:
    cluster = Cluster.local(machines=machines)
    return partition(net, cluster, batch=BATCH, strategy="balanced", precision=precision, **settings)


def truth(
    module: nn.Module, parameters: dict[str, Any], batch: dict[str, Any]
) -> tuple[float, dict[str, np.ndarray[Any, Any]], nn.Module]:
    """Loss and gradients of the network with autograd over all of it, and the module afterwards."""
    given = {name: torch.from_numpy(np.array(one)).requires_grad_() for name, one in parameters.items()}
    block = copy.deepcopy(module).double()
    x = torch.from_numpy(batch["picture"]).permute(0, 3, 1, 2)
    weight = given["stem.weight"].reshape(3, 3, 3, 2).permute(0, 3, 1, 2)
    x = nn.functional.conv2d(x, weight, given["stem.bias"], padding=1)
    states = block(x).permute(0, 2, 3, 1).flatten(1)
    scores = states @ given["scores.weight"].reshape(4, -1).T + given["scores.bias"]
    loss = nn.functional.cross_entropy(scores, torch.from_numpy(batch["class"]).long().flatten())
    loss.backward()
    gradients = {name: one.grad for name, one in given.items() if one.grad is not None}
    gradients |= {f"block.{name}": one.grad for name, one in block.named_parameters()}
    return loss.item(), {n: g.numpy() for n, g in gradients.items() if g is not None}, block


def drawn_pictures() -> dict[str, Any]:
    draw = np.random.default_rng(3)
    return {"picture": draw.normal(size=(BATCH, 5, 4, 2)), "class": draw.integers(0, 4, size=(BATCH, 1))}


@pytest.mark.parametrize("machines", [1, 2, 3])
def test_a_step_equals_pytorch(machines: int) -> None:
    """Loss, gradients and running statistics, whichever machine has the module."""
    torch.manual_seed(1)
    module = Residual(3)
    plan, batch = plan_of(picture_network(module), machines), drawn_pictures()
    parameters = initialise(plan.graph.parameters.values(), 3, dtype="float64")
    loss, gradients, after = truth(module, parameters, batch)
    with Session(plan, parameters, train=True, optimizer=SGD(0.1)) as session:
        step = session.step(batch, collect=("parameters",))
    assert step.loss == pytest.approx(loss, rel=1e-10)
    new = step.vectors["parameters"]
    for name, gradient in gradients.items():
        expected = parameters[name] - 0.1 * gradient
        np.testing.assert_allclose(new[name].reshape(gradient.shape), expected, rtol=1e-9, err_msg=name)
    for name in ("running_mean", "running_var"):
        kept = dict(after.named_buffers())[f"norm.{name}"]
        np.testing.assert_allclose(new[f"block.norm.{name}"], kept, rtol=1e-10, err_msg=name)
    with Session(plan, parameters, train=False) as session:
        rest = session.step(batch).loss
    assert rest == pytest.approx(truth(module.eval(), parameters, batch)[0], rel=1e-10)


def language_network(module: nn.Module) -> Network:
    net = Network("words")
    words = net.input("words", shape=7, classes=11)
    net.loss = SoftmaxCrossEntropy()(Torch(module, integers=True, name="model")(words), net.target("next"))
    return net


def test_ties_and_constant_buffers_come_back_by_the_modules_names(on_threads: WatchedThreads) -> None:  # noqa: F811
    """Training alone gives the same numbers; the trained state loads with strict=True."""
    torch.manual_seed(2)
    module = Language(11, 5)
    net = language_network(module)
    draw = np.random.default_rng(4)
    data = {"words": draw.integers(0, 11, (BATCH, 7)), "next": draw.integers(0, 11, (BATCH, 1))}
    layer = net.graph()["model"].layer
    assert isinstance(layer, Torch)
    assert [one.name for one in layer.parameters((), ((7,),))][:2] == [
        "embedding.weight",
        "recurrent.weight_ih_l0",
    ]
    plan = plan_of(net, 1, precision="float32")
    run = train(plan, data, driver=Downpour(optimizer=SGD(0.1)), epochs=4, show="nothing")
    alone = copy.deepcopy(module)
    optimizer = torch.optim.SGD(alone.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        scores = alone(torch.from_numpy(data["words"]))
        nn.functional.cross_entropy(scores, torch.from_numpy(data["next"]).flatten()).backward()
        optimizer.step()
    state = layer.state_dict(run.parameters)
    assert state.keys() == module.state_dict().keys()
    for name, one in alone.state_dict().items():
        torch.testing.assert_close(state[name], one, rtol=1e-4, atol=1e-6, msg=name)
    module.load_state_dict(state, strict=True)
    with pytest.raises(ValueError, match=r"no other.*give the name of the layer"):
        layer.state_dict(run.parameters, "other")


def test_random_numbers_of_a_module_follow_from_the_seed(on_threads: WatchedThreads) -> None:  # noqa: F811
    """And PyTorch's own random state is what it was."""
    torch.manual_seed(1)
    plan, batch = plan_of(picture_network(Residual(3, rate=0.5)), 2), drawn_pictures()
    driver = Downpour(optimizer=SGD(0.1))
    state = torch.get_rng_state()
    start = initialise(plan.graph.parameters.values(), 3, dtype="float64")
    losses = [
        train(plan, batch, driver=driver, epochs=3, seed=seed, initial=start, show="nothing").history
        for seed in (1, 1, 2)
    ]
    assert torch.equal(torch.get_rng_state(), state)
    found = [tuple(one.loss for one in history) for history in losses]
    assert found[0] == found[1] != found[2], found


def test_a_plan_carries_the_module_without_its_numbers() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(40, 3000), nn.Linear(3000, 4))
    net = Network("wide")
    x = net.input("x", shape=(5, 4, 2))
    net.loss = SoftmaxCrossEntropy()(Torch(module)(x), net.target("y"))
    plan = plan_of(net, 1)
    data = pickle.dumps(plan)
    assert len(data) < 50_000 and pickle.loads(data).graph == plan.graph
    assert plan.graph["torch"].flops_per_node == pytest.approx(2 * (40 * 3000 + 3000 * 4) / 4, rel=1e-3)
    with torch.no_grad():
        module[1].weight.zero_()
    assert initialise(plan.graph.parameters.values(), 0)["torch.1.weight"].any(), "the module was not copied"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: Torch(nn.ReLU), "it is given .*give it an instance of torch.nn.Module"),
        (lambda: Torch(nn.Linear(3, 2)), "the module fails on inputs of shape .2, 2, 5, 4.: "),
        (lambda: Torch(nn.LSTM(4, 2), channels_first=False), "Torch.*: the module"),
        (lambda: Torch(nn.Flatten(0)), "returns a tensor of shape .80,. for 2 examples"),
        (lambda: Torch(nn.MaxPool2d(2, return_indices=True)), "returns tuple; let its forward return one"),
    ],
)
def test_what_is_no_layer_is_refused(given: Any, message: str) -> None:
    x = Network("n").input("x", shape=(5, 4, 2))
    with pytest.raises(ValueError, match=message):
        given()(x)
