"""Parts of a module in `eval()`, and parameters that do not require a gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from partita.engine import Session, from_torch
from partita.engine.parameters import initialise
from partita.layers import BatchNorm, Dropout
from partita.partitioner import Cluster, partition
from tests.pytorch.modules import Pictures, Residual
from tests.pytorch.steps import BATCH, check, drawn

PICTURES = torch.empty(BATCH, 2, 8, 8)


def pictures() -> Pictures:
    """A network whose running statistics are not those of its beginning."""
    torch.manual_seed(3)
    module = Pictures()
    for norm in (module.stem[1], module.block.norm):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    return module


@pytest.mark.parametrize("machines", [1, 3])
def test_batch_normalisation_in_eval_is_frozen_while_the_rest_trains(machines: int) -> None:
    """Its statistics stay and are used, its weights learn."""
    module = pictures()
    module.block.eval()
    net = check(module, PICTURES, machines=machines)
    frozen = {
        grid.name: grid.layer.frozen_statistics
        for grid in net.graph().grids
        if isinstance(grid.layer, BatchNorm)
    }
    assert frozen == {"stem_1": False, "block_norm": True}


def test_a_parameter_without_a_gradient_is_not_trainable() -> None:
    module = pictures()
    for one in module.stem.parameters():
        one.requires_grad_(False)
    module.stem.eval()
    net = check(module, PICTURES, machines=2)
    learns = {name: one.trainable for name, one in net.graph().parameters.items()}
    assert not any(learns[f"stem_{one}"] for one in ("0.weight", "1.weight", "1.bias"))
    assert learns["head.weight"]


def test_a_module_in_eval_is_one_at_rest() -> None:
    """The network trains all of it, and computes what `eval()` does when it predicts."""
    torch.manual_seed(3)
    module: Any = nn.Sequential(Residual(2, rate=0.5), nn.Flatten(), nn.Linear(2 * 8 * 8, 3)).eval()
    net = from_torch(module, (PICTURES,))
    module.train()
    module[0].dropout.eval()
    kinds = [
        [type(grid.layer) for grid in one.graph().grids] for one in (net, from_torch(module, (PICTURES,)))
    ]
    assert Dropout in kinds[0] and Dropout not in kinds[1]
    assert not any(one.layer.frozen_statistics for one in net.graph().grids if type(one.layer) is BatchNorm)
    plan = partition(net, Cluster.local(machines=2), batch=BATCH, strategy="balanced", precision="float64")
    x = drawn(PICTURES)
    with (
        Session(plan, initialise(plan.graph.parameters.values(), 0, dtype="float64"), train=False) as session,
        torch.no_grad(),
    ):
        found = session.step({"input": x.numpy()}, collect=(net.output.name,)).collected[net.output.name]
    torch.testing.assert_close(torch.from_numpy(found.T), module.double().eval()(x), rtol=1e-9, atol=1e-11)
