"""A step of a module in PyTorch, and of the network that it became, in float64."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from partita.engine import SGD, Session, from_torch
from partita.engine.parameters import initialise
from partita.engine.pytorch.imported_network import ImportedNetwork
from partita.layers import HalfSquaredError
from partita.partitioner import Cluster, partition

BATCH = 4
RATE = 0.25


def drawn(like: torch.Tensor, seed: int = 5) -> torch.Tensor:
    """Numbers of the shape and the kind of a tensor; whole ones are below 9."""
    draw = torch.Generator().manual_seed(seed)
    if like.is_floating_point():
        return torch.randn(like.shape, generator=draw, dtype=torch.float64)
    return torch.randint(0, 9, like.shape, generator=draw)


def step_of_torch(
    module: nn.Module, inputs: Sequence[torch.Tensor], y: torch.Tensor, examples_dim: int = 0
) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss, and the module's state after a step of gradient descent; `y` has the examples first."""
    alone = copy.deepcopy(module).double()
    output = alone(*inputs)
    loss = (output.movedim(examples_dim, 0) - y).square().sum() / 2 / len(y)
    loss.backward()
    with torch.no_grad():
        for one in alone.parameters():
            if one.grad is not None:
                one -= RATE * one.grad
    return loss.item(), alone.state_dict()


def check(
    module: nn.Module, *likes: torch.Tensor, machines: int, examples_dim: int = 0, **settings: Any
) -> ImportedNetwork:
    """A step of the network is that of the module: loss, gradients, buffers and names.

    Args:
        module: in training, or parts of it in `eval()`.
        likes: an input each, with the examples on `examples_dim`.
        machines: parts of the plan.
        examples_dim: the examples' dimension in the inputs and in the output.
        settings: of `from_torch`.
    """
    if examples_dim:
        settings["examples_dim"] = examples_dim
    net = from_torch(module, likes, **settings)
    net.loss = HalfSquaredError()(net.output, net.target("wanted"))
    batch = likes[0].shape[examples_dim]
    plan = partition(
        net, Cluster.local(machines=machines), batch=batch, strategy="balanced", precision="float64"
    )
    parameters = initialise(plan.graph.parameters.values(), 0, dtype="float64")
    inputs = [drawn(one, 5 + number) for number, one in enumerate(likes)]
    y = torch.randn(batch, *net.output.shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    loss, expected = step_of_torch(module, inputs, y, examples_dim)
    pairs = zip(net.graph().inputs, inputs, strict=True)
    given = {grid.name: one.movedim(examples_dim, 0).numpy() for grid, one in pairs}
    with Session(plan, parameters, train=True, optimizer=SGD(RATE)) as session:
        step = session.step({**given, "wanted": y.numpy()}, collect=("parameters",))
    assert step.loss == pytest.approx(loss, rel=1e-9)
    found = net.state_dict(step.vectors["parameters"])
    assert list(found) == list(expected)
    for key, values in expected.items():
        if "num_batches_tracked" not in key:
            torch.testing.assert_close(found[key].double(), values, rtol=1e-8, atol=1e-10, msg=key)
    copy.deepcopy(module).load_state_dict(found, strict=True)
    return net


def check_own(
    module: nn.Module, given: Any, *, machines: int, loss_of: Any = None, **settings: Any
) -> ImportedNetwork:
    """A step of the network is that of the module with the loss that it returns, in float64.

    Args:
        module: returns its loss, alone, behind its scores, or by its name.
        given: its arguments, in order or by name, with their numbers.
        machines: parts of the plan.
        loss_of: the loss of what the module returns; if not given, the one among that.
        settings: of `from_torch`.
    """
    net = from_torch(module, given, **settings)
    alone = copy.deepcopy(module).double()
    arguments = given if isinstance(given, dict) else dict(zip(net.arguments, given, strict=True))
    doubled = {name: one.double() if one.is_floating_point() else one for name, one in arguments.items()}
    found = alone(**doubled) if isinstance(given, dict) else alone(*doubled.values())
    loss = found if isinstance(found, torch.Tensor) else found[1 if type(found) is tuple else "loss"]
    loss = loss if loss_of is None else loss_of(found)
    loss.backward()
    batch = len(next(iter(arguments.values())))
    plan = partition(
        net, Cluster.local(machines=machines), batch=batch, strategy="balanced", precision="float64"
    )
    parameters = initialise(plan.graph.parameters.values(), 0, dtype="float64")
    with Session(plan, parameters, train=True, optimizer=SGD(RATE)) as session:
        step = session.step({name: one.numpy() for name, one in doubled.items()}, collect=("parameters",))
    assert step.loss == pytest.approx(loss.item(), rel=1e-9)
    state = net.state_dict(step.vectors["parameters"])
    for name, one in alone.named_parameters():
        torch.testing.assert_close(
            state[name].double(), one.detach() - RATE * one.grad, rtol=1e-9, atol=1e-10
        )
    return net
