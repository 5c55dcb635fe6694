"""Networks of torchvision: a step is PyTorch's, in float64, on parts that are found automatically."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from partita.engine import as_module, from_torch
from partita.layers import Dropout, UpSample
from partita.partitioner import Cluster, partition
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
@pytest.mark.parametrize("machines", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["mobilenet_v2", "efficientnet_b0"])
def test_networks_of_depthwise_convolutions(name: str, machines: int) -> None:
    """In training with enough examples for their statistics, without what draws random numbers."""
    torch.manual_seed(3)
    settings = {"stochastic_depth_prob": 0.0} if name == "efficientnet_b0" else {"width_mult": 0.5}
    module = getattr(vision_models(), name)(num_classes=10, dropout=0.0, **settings)
    check(module, torch.empty(8, 3, 32, 32), machines=machines)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet_v2", "efficientnet_b0"])
def test_networks_of_depthwise_convolutions_at_rest(name: str) -> None:
    """With dropout and stochastic depth, which are left out; outputs and gradients by `as_module`."""
    torch.manual_seed(3)
    module = getattr(vision_models(), name)(num_classes=10)
    for one in module.modules():
        if isinstance(one, nn.BatchNorm2d):
            one.running_mean.normal_(std=0.1), one.running_var.uniform_(0.5, 2)
    net = from_torch(module, (torch.empty(4, 3, 32, 32),))
    kinds = [grid.layer for grid in net.graph().grids if isinstance(grid.layer, Dropout)]
    assert any(one.noise_shape == (1, 1, 1) for one in kinds) == (name == "efficientnet_b0")
    plan = partition(net, Cluster.local(machines=2), batch=4, strategy="balanced", precision="float64")
    module = module.double().eval()
    x, y = (
        torch.randn(4, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        for _ in "xy"
    )
    with as_module(plan) as parts:
        parts.load_state_dict(module.state_dict())
        found, expected = parts.eval()(x.requires_grad_()), module(y.requires_grad_())
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)
        found.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-5, atol=1e-8)
        for (key, one), other in zip(module.named_parameters(), parts.parameters(), strict=True):
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-5, atol=1e-8, msg=key)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda models: models.shufflenet_v2_x0_5(num_classes=10),
        lambda models: models.squeezenet1_1(num_classes=10, dropout=0.0),
        lambda models: models.DenseNet(8, (2, 2), 16, num_classes=10),
        lambda models: models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=10),
        lambda models: models.mobilenet_v3_small(num_classes=10, width_mult=0.5, dropout=0.0),
        lambda models: models.regnet_y_400mf(num_classes=10),
    ],
    ids=["shufflenet", "squeezenet", "densenet", "vit", "mobilenet_v3", "regnet"],
)
def test_networks_that_nobody_tried(make: Any) -> None:
    torch.manual_seed(3)
    check(make(vision_models()), torch.empty(8, 3, 32, 32), machines=2)


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
