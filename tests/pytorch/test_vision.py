"""Networks of torchvision: a step is PyTorch's, in float64, on parts that are found automatically."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partita.layers import UpSample
from tests.pytorch.steps import check
from tests.pytorch.vision import vision_models

PICTURES = torch.empty(2, 3, 64, 64)
SLOW = pytest.mark.slow


@pytest.mark.slow
def test_a_residual_network_with_a_block_in_each_stage() -> None:
    models = vision_models()
    torch.manual_seed(3)
    module = models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=10)
    check(module, PICTURES, machines=2)


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 2, 3, 4])
def test_resnet_18(machines: int) -> None:
    torch.manual_seed(3)
    check(vision_models().resnet18(num_classes=10), PICTURES, machines=machines)


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 2, 4])
def test_vgg_11(machines: int) -> None:
    """Its features on small pictures, of which an adaptive pool repeats the only place; few dense units."""
    torch.manual_seed(3)
    module = vision_models().vgg11(num_classes=10, dropout=0.0)
    module.classifier[0], module.classifier[3] = nn.Linear(512 * 7 * 7, 32), nn.Linear(32, 32)
    module.classifier[6] = nn.Linear(32, 10)
    net = check(module, torch.empty(2, 3, 32, 32), machines=machines)
    assert any(isinstance(grid.layer, UpSample) for grid in net.graph().grids)
