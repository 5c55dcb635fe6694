"""Operations on places without a layer of their own: a step is PyTorch's, cut by channels where it can be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from partita.engine import from_torch
from tests.pytorch.steps import check

PICTURES = torch.empty(4, 3, 8, 8)
SLOW = pytest.mark.slow


class UNet(nn.Module):
    """Down and up again, with what was there before beside it."""

    def __init__(self, up: str) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True)
        self.down, self.turned = nn.Conv2d(8, 12, 3, padding=1), nn.ConvTranspose2d(12, 8, 2, stride=2)
        self.up = up
        self.second = nn.Conv2d(16 if up == "turned" else 20, 8, 3, padding=1)
        self.scores = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.relu(self.norm(self.first(x)))
        deep = torch.relu(self.down(functional.max_pool2d(first, 2)))
        if self.up == "turned":
            wide = self.turned(deep)
        else:
            wide = functional.interpolate(deep, scale_factor=2, mode=self.up)
        scores: torch.Tensor = self.scores(torch.relu(self.second(torch.cat([first, wide], 1))))
        return scores


class Edges(nn.Module):
    """Padding of two kinds, a normalisation of whole pictures, and uneven pools."""

    def __init__(self) -> None:
        super().__init__()
        self.mirror, self.zeros = nn.ReflectionPad2d(1), nn.ZeroPad2d((1, 0, 2, 1))
        self.first, self.norm = nn.Conv2d(3, 4, 3), nn.LayerNorm((4, 9, 9))
        self.pool, self.few = nn.MaxPool2d(2, dilation=2), nn.AdaptiveAvgPool2d((3, 2))
        self.head = nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.zeros(self.first(self.mirror(x)))[:, :, :9, :9]
        scores: torch.Tensor = self.head(self.few(self.pool(self.norm(x))).flatten(1))
        return scores


class Sequence(nn.Module):
    """Convolutions and pools of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.turned = nn.Conv1d(3, 4, 3), nn.ConvTranspose1d(4, 4, 3, stride=2)
        self.most, self.mean, self.head = nn.MaxPool1d(2), nn.AvgPool1d(3), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.mean(self.most(self.turned(self.first(functional.pad(x, (2, 0))))))
        scores: torch.Tensor = self.head(found.transpose(1, 2))
        return scores


class Volumes(nn.Module):
    """A convolution and a pool of volumes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4)
        self.pool, self.head = nn.MaxPool3d(2), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.pool(torch.relu(self.norm(self.first(x)))).mean((2, 3, 4)))
        return scores


class Finer(nn.Module):
    """Channels that become places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.finer, self.last = (
            nn.Conv2d(3, 16, 3, padding=1),
            nn.PixelShuffle(2),
            nn.Conv2d(4, 1, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.finer(self.first(x)))
        return found


@pytest.mark.parametrize(
    ("make", "like", "machines"),
    [
        pytest.param(lambda: UNet("turned"), PICTURES, 3, marks=SLOW),
        pytest.param(lambda: UNet("turned"), PICTURES, 1, marks=SLOW),
        pytest.param(lambda: UNet("nearest"), PICTURES, 2, marks=SLOW),
        pytest.param(lambda: UNet("bilinear"), PICTURES, 4, marks=SLOW),
        pytest.param(Edges, PICTURES, 2, marks=SLOW),
        pytest.param(Sequence, torch.empty(4, 3, 20), 3, marks=SLOW),
        pytest.param(Volumes, torch.empty(4, 2, 4, 4, 4), 2, marks=SLOW),
        pytest.param(Finer, PICTURES, 2, marks=SLOW),
    ],
)
def test_a_step_is_the_modules(make: Any, like: torch.Tensor, machines: int) -> None:
    torch.manual_seed(3)
    check(make(), like, machines=machines)


def test_layers_are_used_where_they_compute_the_same() -> None:
    net = from_torch(UNet("nearest"), (PICTURES,))
    kinds = {grid.name: grid.layer.kind for grid in net.graph().grids}
    assert kinds["upsample_nearest2d"] == "UpSample"
    assert {grid.layer.kind for grid in from_torch(Edges(), (PICTURES,)).graph().grids} >= {"ZeroPad"}
