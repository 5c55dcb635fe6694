"""A residual network with batch normalisation: PyTorch's modules over the whole, cut or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from partita.engine import Session
from partita.engine.parameters import initialise
from partita.layers import (
    Activation,
    Add,
    BatchNorm,
    Conv2D,
    Dense,
    GlobalAveragePool,
    Network,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, partition

BATCH = 4


def network() -> Network:
    net = Network("residual")
    x = Conv2D(4, 3, padding="same", use_bias=False, name="stem")(net.input("x", shape=(6, 5, 3)))
    x = Activation("relu")(BatchNorm(name="stem_norm")(x))
    inner = Conv2D(4, 3, padding="same", use_bias=False, name="inner")(x)
    x = Activation("relu")(Add()(x, BatchNorm(name="inner_norm")(inner)))
    scores = Dense(3, name="scores")(GlobalAveragePool()(x))
    net.loss = SoftmaxCrossEntropy()(scores, net.target("y"))
    return net


def by_torch(given: dict[str, Any], batch: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """The loss, and the gradients of the parameters, in this library's layout."""
    leaves = {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in given.items()}

    def block(x: torch.Tensor, name: str, channels: int) -> torch.Tensor:
        weight = leaves[f"{name}.weight"].reshape(4, 3, 3, channels).permute(0, 3, 1, 2)
        sums = torch.nn.functional.conv2d(x, weight, padding=1)
        scale = (leaves[f"{name}_norm.weight"], leaves[f"{name}_norm.bias"])
        return torch.nn.functional.batch_norm(sums, None, None, *scale, training=True)

    x = torch.from_numpy(batch["x"]).permute(0, 3, 1, 2)
    x = block(x, "stem", 3).relu()
    x = (x + block(x, "inner", 4)).relu().mean((2, 3))
    scores = torch.nn.functional.linear(x, leaves["scores.weight"], leaves["scores.bias"])
    loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(batch["y"][:, 0]))
    loss.backward()
    return loss.item(), {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


@pytest.mark.parametrize("machines", [1, 3])
def test_a_residual_network_is_that_of_pytorch(machines: int) -> None:
    plan = partition(
        network(), Cluster.local(machines), batch=BATCH, precision="float64", strategy="balanced"
    )
    draw = np.random.default_rng(7)
    parameters = initialise(plan.graph.parameters.values(), 3, dtype="float64")
    batch = {"x": draw.normal(size=(BATCH, 6, 5, 3)), "y": draw.integers(0, 3, (BATCH, 1))}
    loss, gradients = by_torch(parameters, batch)
    with Session(plan, parameters, train=True) as session:
        step = session.step(batch, collect=("gradient",))
    assert step.loss == pytest.approx(loss, rel=1e-12)
    assert len(gradients) == 8
    for name, gradient in gradients.items():
        found = step.vectors["gradient"][name].reshape(gradient.shape)
        np.testing.assert_allclose(found, gradient, rtol=1e-9, atol=1e-12, err_msg=name)
