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
    GroupNorm,
    HalfSquaredError,
    Layer,
    Network,
    OneToOne,
    Step,
    Summary,
)
from partita.layers.contract import Tensor
from partita.partitioner import Cluster, Plan, RowSplit, Tiles, Whole, partition
from partita.partitioner.assign.cuts import Cut
from partita.partitioner.ir.buffer import BufferKind

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
