"""Checks of layers: what they compute, and their defaults."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from partita.engine import (
    SGD,
    Session,
)
from partita.layers import (
    Activation,
    AveragePool2D,
    BatchNorm,
    Conv2D,
    Embedding,
    FeedForward,
    GroupNorm,
    HalfSquaredError,
    L2Pool2D,
    Layer,
    LayerNorm,
    Linear,
    MaxPool2D,
    Network,
    RMSNorm,
)
from partita.partitioner import Cluster, partition
from tests.kernels.cases import case, play
from tests.truth.differences.rows import BATCH, agree, row


@row("relu's slope at 0")
def _() -> bool:
    given_case = case(Activation("relu"), (1,), batch=1)
    given_case.inputs[0][...] = 0
    x = torch.zeros(1, requires_grad=True)
    torch.relu(x).backward()
    assert x.grad is not None
    return bool(play(given_case).errors[0].item() == x.grad.item())


@row("padding of `Conv2D` by default")
def _() -> bool:
    ours = case(Conv2D(2, 3), (9, 7, 1), batch=1).grid.shape[:2]
    return ours == tuple(torch.nn.Conv2d(1, 2, 3)(torch.zeros(1, 1, 9, 7)).shape[2:])


@row('"same" for an even kernel')
def _() -> bool:
    given_case = case(Conv2D(1, 2, padding="same", use_bias=False), (4, 4, 1), batch=1)
    theirs = torch.nn.Conv2d(1, 1, 2, padding="same", bias=False).double()
    weight = torch.from_numpy(given_case.parameters[0]).permute(0, 3, 1, 2)
    theirs.weight = torch.nn.Parameter(weight)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using padding='same'")  # it may copy
        return agree(given_case, theirs)


@row("`GroupNorm`'s epsilon and scale by default")
def _() -> bool:
    ours, theirs = GroupNorm(2), torch.nn.GroupNorm(2, 4)
    return (ours.epsilon, ours.scale) == (theirs.eps, theirs.affine)


@row("`LayerNorm`'s epsilon by default")
def _() -> bool:
    return LayerNorm().epsilon == torch.nn.LayerNorm(4).eps


@row("`RMSNorm`'s epsilon by default")
def _() -> bool:
    theirs = torch.nn.RMSNorm(4)
    tiny = torch.full((1, 4), 1e-4)
    unit = torch.finfo(torch.float32).eps
    assert theirs.eps is None
    torch.testing.assert_close(theirs(tiny), tiny / (tiny.square().mean() + unit).sqrt())
    return RMSNorm().epsilon == unit


@row("activation of `FeedForward` by default")
def _() -> bool:
    theirs = torch.nn.TransformerEncoderLayer(4, 2).activation
    assert theirs is torch.nn.functional.relu
    return FeedForward(8).activation == "relu"


@row("`BatchNorm`'s momentum, epsilon and scale by default")
def _() -> bool:
    ours, theirs = BatchNorm(), torch.nn.BatchNorm2d(4)
    return (ours.momentum, ours.epsilon, ours.scale) == (theirs.momentum, theirs.eps, theirs.affine)


@row("`BatchNorm` with momentum `None`")
def _() -> bool:
    none: Any = None
    with pytest.raises(ValueError, match="BatchNorm: the momentum is None"):
        BatchNorm(momentum=none)
    return torch.nn.BatchNorm2d(4, momentum=none).momentum is not None


@row("`BatchNorm` that is called twice in a step")
def _() -> bool:
    x = np.random.default_rng(0).normal(3.0, size=(BATCH, 4)).astype(np.float32)
    net, norm, theirs = Network("twice"), BatchNorm(name="norm"), torch.nn.BatchNorm1d(4)
    net.loss = HalfSquaredError()(norm(norm(net.input("x", shape=4))), net.target("y"))
    plan = partition(net, Cluster.local(machines=1), batch=BATCH)
    with Session(plan, 0, train=True, optimizer=SGD(0.1), hosts="inline") as session:
        step = session.step({"x": x, "y": x}, collect=("parameters",))
    theirs(theirs(torch.tensor(x)))
    assert theirs.running_mean is not None
    mean = 0.1 * x.mean(axis=0)
    np.testing.assert_allclose(theirs.running_mean, 0.9 * mean, rtol=1e-3)
    np.testing.assert_allclose(step.vectors["parameters"]["norm.running_mean"], mean, rtol=1e-3)
    return False


@row("weight of an `Embedding` as that of a `Linear`")
def _() -> bool:
    table, net = Embedding(9, 4), Network("tied")
    scores = Linear(9, weight=table.weight)(table(net.input("words", shape=3, classes=9)))
    theirs = torch.nn.Linear(4, 9)
    theirs.weight = torch.nn.Embedding(9, 4).weight
    return net.graph().parameters["embedding.weight"].shape == theirs.weight.shape and scores.shape == (3, 9)


@row("stride of a pool by default")
def _() -> bool:
    pairs = (MaxPool2D(3), torch.nn.MaxPool2d(3)), (AveragePool2D(3), torch.nn.AvgPool2d(3))
    more = ((L2Pool2D(3), torch.nn.LPPool2d(2, 3)),)
    return all(agree(case(ours, (9, 8, 2), batch=2), theirs) for ours, theirs in (*pairs, *more))


@row("padding of `MaxPool2D`")
def _() -> bool:
    given_case = case(MaxPool2D(3, padding=1), (7, 7, 1), batch=2)
    given_case.inputs[0][...] -= 9
    return agree(given_case, torch.nn.MaxPool2d(3, padding=1))


@row("padding of `AveragePool2D`")
def _() -> bool:
    def one(**settings: Any) -> bool:
        given_case = case(AveragePool2D(3, padding=1, **settings), (7, 7, 1), batch=2)
        return agree(given_case, torch.nn.AvgPool2d(3, padding=1, **settings))

    return one() and one(count_include_pad=False)


@row("`ceil_mode` of `MaxPool2D`, and of `AveragePool2D` without counted padding")
def _() -> bool:
    off = not MaxPool2D(2).ceil_mode and not torch.nn.MaxPool2d(2).ceil_mode
    pairs: list[tuple[Layer, torch.nn.Module]] = [
        (MaxPool2D(3, padding=1, ceil_mode=True), torch.nn.MaxPool2d(3, padding=1, ceil_mode=True)),
        (AveragePool2D(3, ceil_mode=True), torch.nn.AvgPool2d(3, ceil_mode=True)),
    ]
    return off and all(agree(case(layer, (8, 7, 1), batch=2), module) for layer, module in pairs)


@row("`ceil_mode` of `AveragePool2D` with counted padding")
def _() -> bool:
    module = torch.nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True)
    corner = module(torch.ones(1, 1, 4, 4))[0, 0, -1, -1]
    assert torch.isclose(corner, torch.tensor(1 / 4)), "two by two of them count: the picture and its padding"
    with pytest.raises(ValueError, match="what lies there does not count"):
        AveragePool2D(3, stride=2, padding=1, ceil_mode=True)
    return False


@row("`ceil_mode` of `L2Pool2D`")
def _() -> bool:
    full, kept = (
        torch.nn.LPPool2d(2, 2, ceil_mode=True),
        case(L2Pool2D(2, ceil_mode=True), (3, 3, 1), batch=1),
    )
    kept.inputs[0][...] = 1
    assert full(torch.ones(1, 1, 3, 3))[0, 0, -1, -1] == 2
    assert play(kept).state[-1, -1] == 1
    return agree(kept, full)


@row("gradient of `L2Pool2D` where its patch is zero")
def _() -> bool:
    given_case = case(L2Pool2D(2), (2, 2, 1), batch=1)
    given_case.inputs[0][...] = 0
    x = torch.zeros(1, 1, 2, 2, requires_grad=True)
    torch.nn.LPPool2d(2, 2)(x).sum().backward()
    assert x.grad is not None and not play(given_case).errors[0].any()
    return not x.grad.any()
