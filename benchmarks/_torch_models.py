"""Networks as they are written in PyTorch, which `from_torch` turns into ours: ResNet-18 and GPT-2.

No weights are loaded: numbers are drawn by PyTorch's own initialisation, the same ones in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

SEED: Final = 0
WORDS: Final = 8_000
POSITIONS: Final = 128
FEATURES: Final = 256
HEADS: Final = 8
BLOCKS: Final = 4
PICTURE: Final = (3, 128, 128)
CLASSES: Final = 1000


class BasicBlock(nn.Module):
    """Two convolutions of 3 x 3 with batch normalisation, and a path around them."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or before != channels:
            shrink = nn.Conv2d(before, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(shrink, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        found: Tensor = self.relu(y + self.downsample(x))
        return found


class ResNet18(nn.Module):
    """He, Zhang, Ren and Sun, "Deep residual learning for image recognition" (2016), table 1, 18 layers.

    Names are those of torchvision's `resnet18`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = (64, 64, 128, 256, 512)
        for n, (before, channels) in enumerate(pairwise(widths), 1):
            first = BasicBlock(before, channels, 1 if n == 1 else 2)
            self.add_module(f"layer{n}", nn.Sequential(first, BasicBlock(channels, channels, 1)))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for n in range(1, 5):
            x = self.get_submodule(f"layer{n}")(x)
        scores: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return scores


class Block(nn.Module):
    """Causal attention and two linear layers at each position, each behind a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.ln_1, self.ln_2 = nn.LayerNorm(FEATURES), nn.LayerNorm(FEATURES)
        self.c_attn, self.c_proj = nn.Linear(FEATURES, 3 * FEATURES), nn.Linear(FEATURES, FEATURES)
        self.c_fc, self.c_out = nn.Linear(FEATURES, 4 * FEATURES), nn.Linear(4 * FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            one.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for one in self.c_attn(self.ln_1(x)).chunk(3, -1)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.c_proj(attended.transpose(1, 2).flatten(2))
        found: Tensor = x + self.c_out(functional.gelu(self.c_fc(self.ln_2(x))))
        return found


class GPT2(nn.Module):
    """Radford et al., "Language models are unsupervised multitask learners" (2019), in a small size.

    The scores of the next word at each position are products with the table of the words themselves.
    """

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, FEATURES), nn.Embedding(POSITIONS, FEATURES)
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, std=0.02)
        self.h = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.ln_f = nn.LayerNorm(FEATURES)
        self.head = nn.Linear(FEATURES, WORDS, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.wte(words) + self.wpe(torch.arange(POSITIONS))
        for block in self.h:
            x = block(x)
        scores: Tensor = self.head(self.ln_f(x))
        return scores


class FirstStage(nn.Module):
    """GPT-2 up to a block, for a pipeline."""

    def __init__(self, whole: GPT2, blocks: int) -> None:
        super().__init__()
        self.wte, self.wpe, self.h = whole.wte, whole.wpe, whole.h[:blocks]

    def forward(self, words: Tensor) -> Tensor:
        x: Tensor = self.wte(words) + self.wpe(torch.arange(POSITIONS))
        for block in self.h:
            x = block(x)
        return x


class LastStage(nn.Module):
    """GPT-2 from a block on. Its table is that of the first stage, so their gradients have to be added."""

    def __init__(self, whole: GPT2, blocks: int) -> None:
        super().__init__()
        self.h, self.ln_f, self.head = whole.h[blocks:], whole.ln_f, whole.head

    def forward(self, x: Tensor) -> Tensor:
        for block in self.h:
            x = block(x)
        scores: Tensor = self.head(self.ln_f(x))
        return scores


MODELS: Final[Mapping[str, tuple[Callable[[], nn.Module], Tensor]]] = {
    "resnet": (ResNet18, torch.zeros((2, *PICTURE))),
    "gpt2": (GPT2, torch.zeros((2, POSITIONS), dtype=torch.int64)),
}
"""By the name of the network: the module, and two examples of its input."""


def model(name: str) -> nn.Module:
    """A module with its first numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return MODELS[name][0]()
