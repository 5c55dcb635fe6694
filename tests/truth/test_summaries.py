"""Layers whose machines exchange a summary: under any cut they are PyTorch's modules over the whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from partita.engine import Session
from partita.engine.parameters import initialise
from partita.layers import (
    Conv2D,
    Dense,
    GlobalAveragePool,
    GlobalMaxPool,
    GroupNorm,
    HalfSquaredError,
    Layer,
    LayerNorm,
    MaxPool2D,
    Network,
    OneToOne,
    RMSNorm,
    Softmax,
    Step,
    Summary,
)
from partita.layers.contract import Tensor
from partita.partitioner import Cluster, InputSplit, Plan, RowSplit, Tiles, Whole, partition
from partita.partitioner.assign.cuts import Cut
from partita.partitioner.ir.buffer import BufferKind
from tests.truth.interleaved import play_with

BATCH = 6
CUTS: dict[str, tuple[int, dict[str, Cut]]] = {
    "whole": (1, {}),
    "elsewhere": (2, {"first": Whole(0), "norm": Whole(1), "last": Whole(0)}),
    "rows": (3, {"first": RowSplit(2), "norm": RowSplit((2, 0, 1), sizes=(1, 3, 1)), "last": RowSplit(3)}),
    "tiles": (4, {"first": Tiles(4, (2, 2)), "norm": Tiles(4, (2, 2)), "last": RowSplit(3)}),
}


@dataclass(frozen=True)
class SoftmaxOfAll(Layer):
    """The softmax over all nodes, wherever they are."""

    name: str | None = None

    @property
    def connectivity(self) -> OneToOne:
        return OneToOne()

    @property
    def definition(self) -> None:
        return None

    def shape(self, sources: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
        return sources[0]

    def summary(self, shape: tuple[int, ...]) -> Summary:
        return Summary((2,))

    def summarise(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        x = inputs[0].flatten(0, -2)
        largest = x.amax(0)
        return step.torch.stack((largest, (x - largest).exp().sum(0)))

    def combine(self, step: Step, summaries: Tensor) -> Tensor:
        largest, totals = summaries.unbind(1)
        most = largest.amax(0)
        return step.torch.stack((most, (totals * (largest - most).exp()).sum(0)))

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        largest, total = step.summary
        return (inputs[0] - largest).exp() / total


LAYERS: list[tuple[Layer, Any]] = [
    (GroupNorm(2, name="norm"), torch.nn.GroupNorm(2, 4, dtype=torch.float64)),
    (GroupNorm(4, scale=False, name="norm"), torch.nn.GroupNorm(4, 4, affine=False, dtype=torch.float64)),
    (SoftmaxOfAll("norm"), lambda x: torch.softmax(x.flatten(1), 1).reshape(x.shape)),
]


def plan_of(layer: Layer, cuts: str, **settings: Any) -> Plan:
    net, (machines, given) = Network("summarised"), CUTS[cuts]
    x = Conv2D(4, 3, padding="same", name="first")(net.input("x", shape=(5, 4, 2)))
    last = Conv2D(2, 3, name="last")(layer(x))
    net.loss = HalfSquaredError(name="loss")(last, net.target("y"))
    cluster = Cluster.local(machines)
    return partition(net, cluster, batch=BATCH, precision="float64", cuts=given, **settings)


def expected(module: Any, parameters: dict[str, Any], batch: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The layer's output and all gradients, by PyTorch over the whole."""
    given = {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in parameters.items()}

    def convolved(x: torch.Tensor, name: str, padding: int) -> torch.Tensor:
        weight, bias = given[f"{name}.weight"], given[f"{name}.bias"]
        weight = weight.reshape(len(weight), 3, 3, -1).permute(0, 3, 1, 2)
        return torch.nn.functional.conv2d(x, weight, bias, padding=padding)

    if isinstance(module, torch.nn.Module):
        own = {name: given[f"norm.{name}"] for name, _ in module.named_parameters()}

        def normal(x: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(module, own, x)
    else:
        normal = module
    x = convolved(torch.from_numpy(batch["x"]).permute(0, 3, 1, 2), "first", 1)
    found = normal(x)
    y = torch.from_numpy(batch["y"]).permute(0, 3, 1, 2)
    ((convolved(found, "last", 0) - y).square().sum() / 2 / BATCH).backward()
    gradients = {name: tensor.grad.numpy() for name, tensor in given.items() if tensor.grad is not None}
    return found.detach().permute(2, 3, 1, 0).numpy(), gradients


@pytest.mark.parametrize(
    ("layer", "module", "cuts", "micro_batches"),
    [
        *((*LAYERS[0], cuts, 1 + 2 * (cuts == "rows")) for cuts in CUTS),
        (*LAYERS[1], "tiles", 1),
        (*LAYERS[2], "tiles", 3),
    ],
    ids=lambda one: getattr(one, "kind", str(one) if isinstance(one, str | int) else ""),
)
def test_equals_pytorch_under_any_cut(layer: Layer, module: Any, cuts: str, micro_batches: int) -> None:
    plan = plan_of(layer, cuts, micro_batches=micro_batches)
    parameters = initialise(plan.graph.parameters.values(), 3, dtype="float64")
    draw = np.random.default_rng(5)
    parameters = {name: array + draw.normal(size=array.shape) / 4 for name, array in parameters.items()}
    batch = {"x": draw.normal(size=(BATCH, 5, 4, 2)), "y": draw.normal(size=(BATCH, 3, 2, 2))}
    output, gradients = expected(module, parameters, batch)
    with Session(plan, parameters, train=True) as session:
        step = session.step(batch, collect=("norm", "gradient"))
    np.testing.assert_allclose(step.collected["norm"], output, rtol=1e-10, atol=1e-12)
    for name, gradient in gradients.items():
        found = step.vectors["gradient"][name].reshape(gradient.shape)
        np.testing.assert_allclose(found, gradient, rtol=1e-9, atol=1e-11, err_msg=name)


def test_machines_exchange_a_summary_and_its_gradient_and_no_picture() -> None:
    plan = plan_of(LAYERS[0][0], "rows")
    exchanged = [m for m in plan.messages if m.buffer.kind in (BufferKind.SUMMARY, BufferKind.GRAD_SUMMARY)]
    assert len(exchanged) == 2 * 3 * 2
    assert {message.n_bytes for message in exchanged} == {3 * 2 * BATCH * 8}


def row_of_features(layer: Layer, machines: int) -> Plan:
    """A row of seven features, over all machines, between dense layers."""
    net = Network("row")
    below = Dense(7, name="below")(net.input("x", shape=5))
    net.loss = HalfSquaredError(name="loss")(Dense(2, name="scores")(layer(below)), net.target("y"))
    cuts: dict[str, Cut] = {"below": RowSplit(machines), "norm": RowSplit(machines)}
    cluster = Cluster.local(machines)
    return partition(net, cluster, batch=BATCH, precision="float64", cuts=cuts, micro_batches=1)


ROWS: list[tuple[Layer, Any]] = [
    (LayerNorm(name="norm"), torch.nn.LayerNorm(7, dtype=torch.float64)),
    (RMSNorm(name="norm"), torch.nn.RMSNorm(7, eps=1e-5, dtype=torch.float64)),
    (Softmax(name="norm"), torch.nn.Softmax(1)),
]


@pytest.mark.parametrize("machines", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 4, 5, 6))])
@pytest.mark.parametrize(("layer", "module"), ROWS, ids=lambda one: getattr(one, "kind", ""))
def test_a_row_of_features_equals_pytorch_and_only_sums_travel(
    layer: Layer, module: torch.nn.Module, machines: int
) -> None:
    plan, draw = row_of_features(layer, machines), np.random.default_rng(5)
    parameters = {name: draw.normal(size=p.shape) for name, p in plan.graph.parameters.items()}
    batch = {"x": draw.normal(size=(BATCH, 5)), "y": draw.normal(size=(BATCH, 2))}
    given = {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in parameters.items()}
    x = torch.from_numpy(batch["x"]) @ given["below.weight"].T + given["below.bias"]
    own = {name: given[f"norm.{name}"] for name, _ in module.named_parameters()}
    output: torch.Tensor = torch.func.functional_call(module, own, x)
    scores = output @ given["scores.weight"].T + given["scores.bias"]
    ((scores - torch.from_numpy(batch["y"])).square().sum() / 2 / BATCH).backward()
    found = play_with(plan, parameters, batch)
    np.testing.assert_allclose(found.states["norm"], output.detach().T, rtol=1e-10, atol=1e-12)
    for name, tensor in given.items():
        assert tensor.grad is not None
        np.testing.assert_allclose(
            found.gradients[name], tensor.grad.numpy(), rtol=1e-9, atol=1e-11, err_msg=name
        )
    around = [m for m in plan.messages if m.layer in ("below", "norm") and "scores" not in str(m.buffer)]
    kinds = (BufferKind.SUMMARY, BufferKind.GRAD_SUMMARY)
    numbers = [m for m in around if m.buffer.kind in kinds]
    assert len(numbers) == 2 * machines * (machines - 1)
    assert {str(m.buffer) for m in around if m not in numbers} <= {"norm"}  # what the next layer reads


@pytest.mark.parametrize("replicated", [True, False])
def test_a_global_mean_adds_up_the_sums_of_each_machine(replicated: bool) -> None:
    """Machines send sums of channels, and no picture."""
    net = Network("pooled")
    picture = Conv2D(3, 3, padding="same", name="first")(net.input("x", shape=(5, 4, 2)))
    pooled = GlobalAveragePool(name="pooled")(picture)
    net.loss = HalfSquaredError(name="loss")(Dense(2, name="scores")(pooled), net.target("y"))
    split: dict[str, Cut] = {"first": RowSplit(3), "pooled": InputSplit(3, replicated=replicated)}
    cut, whole = (
        partition(net, Cluster.local(n), batch=BATCH, precision="float64", cuts=cuts, strategy="balanced")
        for n, cuts in ((3, split), (1, {}))
    )
    draw = np.random.default_rng(5)
    parameters = {name: draw.normal(size=p.shape) for name, p in whole.graph.parameters.items()}
    batch = {"x": draw.normal(size=(BATCH, 5, 4, 2)), "y": draw.normal(size=(BATCH, 2))}
    found, expected = play_with(cut, parameters, batch), play_with(whole, parameters, batch)
    np.testing.assert_allclose(found.states["pooled"], expected.states["first"].mean((0, 1)), rtol=1e-12)
    for name, gradient in expected.gradients.items():
        np.testing.assert_allclose(found.gradients[name], gradient, rtol=1e-10, atol=1e-12, err_msg=name)
    in_forward = [m for m in cut.messages if m.direction == "forward" and not m.is_of_weights]
    assert {m.n_bytes for m in in_forward if m.buffer.kind is BufferKind.PARTIAL_SUMS} == {
        (3 if replicated else 1) * BATCH * 8
    }


def test_a_global_maximum_after_that_of_each_machines_rows_is_the_same() -> None:
    """On ties, too, of which pictures of whole numbers have many; machines send a number for each channel."""
    found = []
    for halves in (False, True):
        net = Network("pooled")
        picture = Conv2D(3, 3, padding="same", name="first")(net.input("x", shape=(6, 4, 2)))
        read = MaxPool2D((2, 4), name="thirds")(picture) if halves else picture
        pooled = GlobalMaxPool(name="pooled")(read)
        net.loss = HalfSquaredError(name="loss")(Dense(2, name="scores")(pooled), net.target("y"))
        cluster = Cluster.local(3 if halves else 1)
        plan = partition(net, cluster, batch=BATCH, precision="float64", strategy="balanced")
        draw = np.random.default_rng(5)
        parameters = {
            name: draw.integers(-1, 2, p.shape).astype(float) for name, p in plan.graph.parameters.items()
        }
        batch = {"x": draw.integers(-1, 2, (BATCH, 6, 4, 2)).astype(float), "y": np.ones((BATCH, 2))}
        found.append(play_with(plan, parameters, batch))
    whole, cut = found
    ties = (whole.states["first"] == whole.states["pooled"]).sum((0, 1)) > 1
    assert ties.any()
    np.testing.assert_array_equal(cut.states["pooled"], whole.states["pooled"])
    for name, gradient in whole.gradients.items():
        np.testing.assert_allclose(cut.gradients[name], gradient, rtol=1e-12, atol=1e-12, err_msg=name)
    sent = {str(m.buffer): m.n_bytes for m in plan.messages if m.layer in ("first", "thirds")}
    assert sent.pop("thirds") == BATCH * 3 * 8 and "first" not in sent and "first<pooled" not in sent
