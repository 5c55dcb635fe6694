"""A partitioned network as a module of PyTorch: it trains as the module that it was made of does."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from partita.engine import Run, as_module, from_torch
from partita.engine.parameters import initialise
from partita.engine.run.as_module import PartitionedModule
from partita.layers import Add, Conv2D, Dense, Dropout, HalfSquaredError, Network
from partita.partitioner import Cluster, Plan, Replicated, RowSplit, partition
from tests.pytorch.modules import InPlace, Pictures

BATCH = 4
PICTURES = torch.empty(BATCH, 2, 8, 8, dtype=torch.float64)
WORDS = torch.empty(BATCH, 6, dtype=torch.int64)


def module_of(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return make().double()


def plan_of(net: Network, machines: int, **settings: Any) -> Plan:
    cluster = Cluster.local(machines=machines)
    settings = {"strategy": "balanced", **settings}
    return partition(net, cluster, batch=BATCH, precision="float64", **settings)


def drawn(like: torch.Tensor, seed: int = 5) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    if like.is_floating_point():
        return torch.randn(like.shape, generator=draw, dtype=like.dtype).requires_grad_()
    return torch.randint(0, 9, like.shape, generator=draw)


def assert_close(found: torch.Tensor | None, expected: torch.Tensor | None, what: str) -> None:
    assert (found is None) == (expected is None), what
    if found is not None and expected is not None:
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, msg=lambda text: f"{what}: {text}")


def assert_same_training(module: nn.Module, parts: nn.Module, like: torch.Tensor, *, steps: int = 5) -> None:
    """Outputs, gradients of inputs and parameters over steps of torch's Adam, and the state at the end."""
    ours, theirs = (torch.optim.Adam(one.parameters(), 0.01) for one in (parts, module))
    for step in range(steps):
        examples = BATCH - step % 2  # a batch that is not full
        x, y = (drawn(like, step)[:examples].detach() for _ in range(2))
        for one in (x, y) if like.is_floating_point() else ():
            one.requires_grad_()
        for optimizer, given, called in ((ours, x, parts), (theirs, y, module)):
            optimizer.zero_grad()
            scores = called(given)
            (scores.square().sum() / 2 + scores[0, 0]).backward()
            optimizer.step()
        assert_close(x.grad, y.grad, f"input in step {step}")
        for (name, found), (known, expected) in zip(
            parts.named_parameters(), module.named_parameters(), strict=True
        ):
            assert name == known
            assert_close(found.grad, expected.grad, f"{name} in step {step}")
    for name, expected in module.state_dict().items():
        if "num_batches_tracked" not in name:
            assert_close(parts.state_dict()[name], expected, name)
    module.eval(), parts.eval()
    x = drawn(like, 9)
    with torch.no_grad():
        assert_close(parts(x), module(x), "at rest")
        assert_close(parts(x[:1]), module(x[:1]), "of one example")


@pytest.mark.parametrize(
    ("make", "like", "machines"),
    [
        (Pictures, PICTURES, 3),
        (InPlace, WORDS, 2),
        pytest.param(Pictures, PICTURES, 1, marks=pytest.mark.slow),
        pytest.param(Pictures, PICTURES, 2, marks=pytest.mark.slow),
        pytest.param(Pictures, PICTURES, 4, marks=pytest.mark.slow),
        pytest.param(InPlace, WORDS, 4, marks=pytest.mark.slow),
    ],
)
def test_it_trains_as_the_module_does(make: Any, like: torch.Tensor, machines: int) -> None:
    module = module_of(make)
    net = from_torch(module, (like,))
    with as_module(plan_of(net, machines)) as parts:
        assert list(parts.state_dict()) == list(module.state_dict())
        assert_same_training(module, parts, like)
        module.load_state_dict(parts.state_dict(), strict=True)


@pytest.mark.slow
def test_it_trains_in_processes() -> None:
    module = module_of(Pictures)
    net = from_torch(module, (PICTURES,))
    with as_module(plan_of(net, 2), hosts="processes") as parts:
        assert_same_training(module, parts, PICTURES)


def declared() -> Network:
    """A picture that three layers read, one of them over copies."""
    net = Network("declared")
    picture = net.input("picture", shape=(4, 4, 2))
    one = Conv2D(2, kernel_size=3, padding="same", name="one")(picture)
    joined = Add(name="joined")(one, picture)
    found = Dense(3, name="scores")(Add(name="once_more")(joined, picture))
    net.loss = HalfSquaredError(name="loss")(found, net.target("y"))
    return net


def test_several_outputs_gradients_of_inputs_and_the_runs_parameters() -> None:
    """In a network that was declared here, cut over two machines with copies."""
    plan = plan_of(declared(), 2, cuts={"one": RowSplit(2), "joined": Replicated(2)})
    run = Run(plan, initialise(plan.graph.parameters.values(), 4, dtype="float64"))
    weight, bias = (torch.from_numpy(run.parameters[f"one.{name}"]) for name in ("weight", "bias"))
    x = drawn(torch.empty(BATCH, 4, 4, 2, dtype=torch.float64))
    twin = x.detach().clone().requires_grad_()
    with as_module(plan, run, outputs=("joined", "scores")) as parts:
        joined, scores = parts(x)
        (joined.square().sum() + scores.sum()).backward()
    state = {name: one.detach().clone().requires_grad_() for name, one in parts.state_dict().items()}
    filters = state["one.weight"].reshape(2, 3, 3, 2).permute(0, 3, 1, 2)
    moved = twin.permute(0, 3, 1, 2)
    one = nn.functional.conv2d(moved, filters, state["one.bias"], padding=1).permute(0, 2, 3, 1)
    expected = one + twin
    flat = (expected + twin).flatten(1)
    known = flat @ state["scores.weight"].reshape(3, -1).T + state["scores.bias"]
    (expected.square().sum() + known.sum()).backward()
    assert torch.equal(parts.state_dict()["one.weight"], weight.reshape(state["one.weight"].shape))
    assert torch.equal(parts.state_dict()["one.bias"], bias)
    assert_close(joined, expected, "joined")
    assert_close(scores, known, "scores")
    assert_close(x.grad, twin.grad, "picture")
    for name, values in parts.named_parameters():
        assert_close(values.grad, state[name].grad, name)


def dense(rate: float = 0.0) -> Plan:
    net = Network("dense")
    x = net.input("x", shape=5)
    Dense(2, name="scores")(Dropout(rate, name="dropout")(Dense(64, name="hidden")(x)))
    return plan_of(net, 1)


def test_calls_may_come_before_the_backward_pass_of_another() -> None:
    """As of two examples that are compared; an earlier call is played again, with the same random numbers."""
    x, y = (drawn(torch.empty(BATCH, 5, dtype=torch.float64), seed) for seed in (1, 2))
    with as_module(dense(0.5)) as parts:
        assert isinstance(parts, PartitionedModule)
        first = parts(x)
        first.sum().backward(retain_graph=True)
        known = copy.deepcopy([one.grad for one in parts.parameters()])
        parts.zero_grad()
        second = parts(y)
        assert not torch.equal(parts(y), second), "another mask"
        first.sum().backward()
        for one, other in zip(parts.parameters(), known, strict=True):
            assert_close(one.grad, other, "played again")
        with torch.no_grad():
            weight = parts.get_parameter("hidden.weight")
            before = parts.eval()(x)
            weight.data.mul_(2)  # which leaves no trace in the tensor
            assert not torch.equal(parts(x), before)
        weight.detach().mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            second.sum().backward()


def test_two_calls_before_one_backward_pass() -> None:
    """As of two pictures whose distance is the loss: the gradients of both calls are added."""
    x, y = (drawn(torch.empty(BATCH, 5, dtype=torch.float64), seed) for seed in (1, 2))
    with as_module(dense()) as parts:
        state = {name: one.detach().clone().requires_grad_() for name, one in parts.named_parameters()}

        def known(given: torch.Tensor) -> torch.Tensor:
            hidden = nn.functional.linear(given, state["hidden.weight"].reshape(64, 5), state["hidden.bias"])
            return nn.functional.linear(hidden, state["scores.weight"].reshape(2, 64), state["scores.bias"])

        for called in (parts, known):
            first, second = called(x), called(y)
            ((first - second).square().sum() + first.sum()).backward()
    for name, one in parts.named_parameters():
        assert_close(one.grad, state[name].grad, name)


def test_a_part_of_a_larger_module_and_its_copy() -> None:
    parts = as_module(dense())
    whole = nn.Sequential(nn.Linear(3, 5), parts, nn.Linear(2, 1)).double()
    copied = copy.deepcopy(whole)
    x = torch.ones(2, 3, dtype=torch.float64)
    with parts, copied[1]:
        for one in (whole, copied):
            one(x).sum().backward()
        for one, other in zip(whole.parameters(), copied.parameters(), strict=True):
            assert_close(one.grad, other.grad, "a copy")
        assert whole[0].weight.grad.abs().sum() > 0
    assert "dense: 514 parameters, 1 machine" in repr(whole)


def test_what_cannot_be_is_refused() -> None:
    x = torch.ones(BATCH, 5, dtype=torch.float64)
    parts = as_module(dense())
    with parts:
        for wrong, says in (
            ((), "0 tensors given, and the inputs are x"),
            ((x[:, :4],), "input 'x' has shape (4, 4); give (examples, 5)"),
            ((x.long(),), "input 'x' is torch.int64; give real numbers"),
            ((torch.cat([x, x]),), "8 examples given, and the plan is for 1 to 4"),
        ):
            with pytest.raises(ValueError, match=re.escape(says)):
                parts(*wrong)
        found = parts(x).sum()
        found.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            found.backward()
        late = parts.train()(x).sum()
    with pytest.raises(RuntimeError, match="closed before this backward pass"):
        late.backward()
    with pytest.raises(RuntimeError, match="the module is closed"):
        parts(x)
    with pytest.raises(ValueError, match="the outputs are x; name some layers, once each, of hidden"):
        as_module(dense(), outputs=("x",))
    frozen = nn.Linear(5, 2).requires_grad_(False)
    with as_module(plan_of(from_torch(frozen, (x.float(),)), 1)) as still:
        assert not still(x).requires_grad
        with pytest.raises(ValueError, match="weight, bias requires a gradient, and the parts compute none"):
            still.requires_grad_(True)(x)
    other = plan_of(declared(), 1)
    with pytest.raises(ValueError, match="the run is of network 'declared', and the plan of 'dense'"):
        as_module(dense(), Run(other, initialise(other.graph.parameters.values(), 0)))
