"""A partitioned module in other people's loops: gradients, switches and copies as PyTorch's module has."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from partita.engine import Torch, as_module, from_torch
from partita.engine.run.as_module import PartitionedModule
from partita.layers import Network
from partita.partitioner import Cluster, partition

BATCH = 4


class Small(nn.Module):
    """A convolution that is normalised, dropout, and scores."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.drop, self.head = nn.Dropout(rate), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.relu(self.norm(self.first(x)))
        scores: torch.Tensor = self.head(self.drop(found).mean((2, 3)))
        return scores


def pictures(seed: int, examples: int = BATCH) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(examples, 2, 4, 4, generator=draw, dtype=torch.float64)


def pair(rate: float = 0.0, machines: int = 2) -> tuple[nn.Module, PartitionedModule]:
    """The module and its parts, with the same numbers; the statistics are no zeros and ones."""
    torch.manual_seed(2)
    module = Small(rate).double()
    module.norm.running_mean.normal_()
    module.norm.running_var.uniform_(0.5, 2)
    net = from_torch(module, (pictures(0),))
    cluster = Cluster.local(machines=machines)
    plan = partition(net, cluster, batch=BATCH, strategy="balanced", precision="float64")
    parts = as_module(plan)
    parts.load_state_dict(module.state_dict())
    return module, parts


@pytest.fixture
def both() -> Iterator[tuple[nn.Module, PartitionedModule]]:
    module, parts = pair()
    with parts:
        yield module, parts


def assert_same_gradients(module: nn.Module, parts: nn.Module, what: str = "") -> None:
    for (name, one), (_, other) in zip(module.named_parameters(), parts.named_parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), (what, name)
        if one.grad is not None:
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-9, atol=1e-10, msg=f"{what} {name}")


def each(both: tuple[nn.Module, nn.Module], act: Callable[[nn.Module], Any]) -> None:
    """Does the same with the module and with its parts, and compares their gradients, results and states."""
    found = [act(one) for one in both]
    if isinstance(found[0], torch.Tensor):
        torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-10)
    assert_same_gradients(*both)
    state = both[1].state_dict()
    for name, values in both[0].state_dict().items():
        if "num_batches" not in name:
            torch.testing.assert_close(state[name], values, rtol=1e-9, atol=1e-10, msg=name)


def loss_of(module: nn.Module, seed: int) -> torch.Tensor:
    found: torch.Tensor = module(pictures(seed)).square().sum()
    return found


def test_gradients_accumulate_and_are_set_to_zero_or_none(both: Any) -> None:
    def act(module: nn.Module) -> None:
        loss_of(module, 1).backward()
        (loss_of(module, 2) / 2).backward()

    def again(module: nn.Module) -> None:
        module.zero_grad(set_to_none=False)
        assert all(not one.grad.any() for one in module.parameters())
        loss_of(module, 3).backward()
        module.zero_grad()
        assert all(one.grad is None for one in module.parameters())
        loss_of(module, 4).backward()

    each(both, act)
    each(both, again)


@pytest.mark.slow
def test_clipping_groups_and_a_parameter_without_gradient(both: Any) -> None:
    def act(module: nn.Module) -> torch.Tensor:
        module.get_parameter("first.bias").requires_grad_(False)
        head = [one for name, one in module.named_parameters() if name.startswith("head")]
        rest = [one for name, one in module.named_parameters() if not name.startswith("head")]
        groups = [{"params": head, "lr": 0.5}, {"params": rest, "weight_decay": 0.1}]
        optimizer = torch.optim.AdamW(groups, lr=0.01)
        norms = []
        for seed in range(3):
            optimizer.zero_grad()
            loss_of(module, seed).backward()
            norms.append(torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5))
            optimizer.step()
        module.get_parameter("first.bias").requires_grad_(True)
        loss_of(module, 7).backward()
        return torch.stack(norms)

    each(both, act)


@pytest.mark.slow
def test_one_module_twice_in_one_graph_and_gradients_by_autograd_grad(both: Any) -> None:
    """The distance of two results, as of pairs that are compared; and a gradient for some parameters alone.

    Running statistics are frozen: those of two calls change in the order of their backward passes.
    """

    def act(module: nn.Module) -> None:
        first, second = module(pictures(1)), module(pictures(2))
        ((first - second).square().sum() + first.sum()).backward()

    def some(module: nn.Module) -> torch.Tensor:
        x = pictures(3).requires_grad_()
        of_x, of_weight = torch.autograd.grad(module(x).exp().sum(), (x, module.get_parameter("head.weight")))
        return torch.cat([of_x.flatten(), of_weight.flatten()])

    for one in both:
        one.eval()
    each(both, act)
    each(both, some)


@pytest.mark.parametrize("machines", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_gradients_at_rest(machines: int) -> None:
    """Without dropout and with running statistics, which stay as they are; calls in training in between."""
    module, parts = pair(0.5, machines)

    def act(module: nn.Module) -> torch.Tensor:
        module.eval()
        x = pictures(1).requires_grad_()
        first = module(x)
        with torch.no_grad():
            module(pictures(2))
        first.square().sum().backward()
        loss_of(module, 3).backward()
        module(pictures(4)[:2]).sum().backward()
        assert x.grad is not None
        return torch.cat([first.flatten(), x.grad.flatten()])

    with parts:
        each((module, parts), act)
        before = copy.deepcopy(parts.state_dict())
        at_rest, in_training = parts.eval()(pictures(5)).sum(), parts.train()(pictures(5)).sum()
        at_rest.backward()
        assert not torch.equal(at_rest, in_training)
        assert all(torch.equal(before[name], one) for name, one in parts.state_dict().items())
        in_training.backward()
        assert not torch.equal(parts.state_dict()["norm.running_mean"], before["norm.running_mean"])


@pytest.mark.slow
def test_gradients_at_rest_of_a_module_that_is_a_layer() -> None:
    torch.manual_seed(2)
    module = Small(0.5)
    net = Network("layer")
    layer = Torch(module, name="inner", channels_first=False)
    layer(net.input("x", shape=(2, 4, 4)))
    plan = partition(net, Cluster.local(machines=1), batch=BATCH, precision="float64")
    module = copy.deepcopy(module).double()
    with as_module(plan) as parts:
        x, y = (pictures(1).requires_grad_() for _ in range(2))
        module.eval()(x).square().sum().backward()
        parts.eval()(y).square().sum().backward()
        torch.testing.assert_close(y.grad, x.grad)
        for name, one in module.named_parameters():
            torch.testing.assert_close(parts.get_parameter(f"inner.{name}").grad, one.grad)


def test_no_gradients_are_kept_without_their_mode(both: Any) -> None:
    _, parts = both
    with torch.no_grad():
        assert not parts(pictures(1)).requires_grad
    with torch.inference_mode():
        found = parts(pictures(1))
    assert found.is_inference() or not found.requires_grad
    assert parts(pictures(1)).requires_grad
    parts.requires_grad_(False)
    assert not parts(pictures(1)).requires_grad
    x = pictures(1).requires_grad_()
    parts(x).sum().backward()
    assert x.grad is not None
    assert all(one.grad is None for one in parts.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("way", ["copy", "pickle"])
def test_copies_have_parts_and_parameters_of_their_own(way: str, both: Any) -> None:
    module, parts = both
    loss_of(parts, 1).backward()
    copied = copy.deepcopy(parts) if way == "copy" else pickle.loads(pickle.dumps(parts))
    with copied:
        assert [*copied.state_dict()] == [*parts.state_dict()]
        loss_of(module, 2).backward()
        copied.zero_grad()
        loss_of(copied, 2).backward()
        assert_same_gradients(module, copied)
        with torch.no_grad():
            copied.get_parameter("head.bias").fill_(7)
        assert not parts.get_parameter("head.bias").eq(7).any()
