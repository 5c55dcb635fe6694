"""Nodes of a user's own that share parameters: any cut has the activations and gradients of torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from partita.engine.kernels import node as kernels
from partita.engine.parameters import initialise
from partita.layers import (
    Dense,
    HalfSquaredError,
    Network,
    OneToOne,
    Patch,
    node,
    per_edge,
    per_node,
)
from partita.partitioner import Cluster, Tiles, partition
from partita.partitioner.assign.cuts import Cut
from tests.truth.interleaved import InterleavedReplica, draw_batch


@node(
    Patch(3, padding=1),
    weight=per_edge("glorot", shared_by="filter"),
    bias=per_node(0.125),
    slope=per_node(0.25, shared_by="layer"),
)
def filtered(incoming, weight, bias, slope):  # type: ignore[no-untyped-def]
    """A convolution whose places have biases of their own, and one slope for negative sums."""
    total = bias
    for k in range(len(incoming)):
        total += weight[k] * incoming[k]
    return total if total > 0 else slope * total


@node(OneToOne(), gain=per_node(0.5, shared_by="filter"))
def scaled(incoming, gain):  # type: ignore[no-untyped-def]
    """A gain for each channel; nothing of the node's own."""
    return gain * incoming[0] * incoming[0]


def pictures() -> Network:
    """Two nodes of a user's own, one of which shares some parameters and one all."""
    net = Network("pictures")
    hidden = filtered(3, name="filtered")(net.input("x", shape=(5, 4, 2)))
    scores = Dense(4, name="scores")(scaled(name="scaled")(hidden))
    net.loss = HalfSquaredError()(scores, net.target("y"))
    return net


def in_torch(batch: dict[str, torch.Tensor], p: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss of `pictures`."""
    weight = p["filtered.weight"].reshape(3, 3, 3, 2).permute(0, 3, 1, 2)
    sums = functional.conv2d(batch["x"].permute(0, 3, 1, 2), weight, padding=1).permute(0, 2, 3, 1)
    sums = sums + p["filtered.bias"]
    hidden = torch.where(sums > 0, sums, p["filtered.slope"] * sums)
    scores = (p["scaled.gain"] * hidden.square()).flatten(1) @ p["scores.weight"].T + p["scores.bias"]
    return (scores - batch["y"]).square().sum() / 2 / len(scores)


TILES: dict[str, Cut] = {"filtered": Tiles(4, (2, 2)), "scaled": Tiles(4, (2, 2))}


@pytest.mark.slow  # nodes of random networks share parameters, too, and are compiled by default
@pytest.mark.parametrize(
    ("machines", "cuts", "micro_batches"), [(1, {}, 1), (2, {}, 2), (4, TILES, 1), (5, {}, 1)]
)
def test_any_cut_has_the_gradients_of_torch(machines: int, cuts: dict[str, Cut], micro_batches: int) -> None:
    assert_gradients(machines, cuts, micro_batches)


def test_the_form_in_torch_has_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_FORMS", (kernels._in_torch,))
    assert_gradients(2, {}, 1)


def assert_gradients(machines: int, cuts: dict[str, Cut], micro_batches: int) -> None:
    """Compares the gradients of a step with those of autograd."""
    plan = partition(
        pictures(),
        Cluster.local(machines=machines),
        batch=4,
        cuts=cuts,
        precision="float64",
        strategy="balanced",
        micro_batches=micro_batches,
    )
    shapes = {name: parameter.shape for name, parameter in plan.graph.parameters.items()}
    assert shapes["filtered.weight"] == (3, 18) and shapes["filtered.bias"] == (5, 4, 3)
    assert shapes["filtered.slope"] == (1,) and shapes["scaled.gain"] == (3,)
    parameters = initialise(plan.graph.parameters.values(), 7, dtype="float64")
    batch = draw_batch(plan.graph, plan.batch, 11)
    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in parameters.items()}
    loss = in_torch({name: torch.tensor(array) for name, array in batch.items()}, leaves)
    loss.backward()
    found = InterleavedReplica(plan, parameters, seed=machines).step(batch)
    assert found.gradients.keys() == leaves.keys()
    for name, leaf in leaves.items():
        np.testing.assert_allclose(found.gradients[name], leaf.grad, rtol=0, atol=1e-12, err_msg=name)
