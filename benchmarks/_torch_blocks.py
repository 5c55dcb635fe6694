"""The transformer of `_blocks` in PyTorch: modules in a row, which its parallel forms cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.nn import functional

from benchmarks._recipe import Array

HEADS: Final = 8


class Positions(nn.Module):
    """Adds learned numbers to a sequence."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the sum of the sequence and the numbers."""
        return x + self.weight


class Block(nn.Module):
    """Attention and two dense layers at each position.

    Rows of `qkv` are head after head, so that halves of them are halves of the heads.
    """

    def __init__(self, arrays: Mapping[str, Tensor], number: int) -> None:
        super().__init__()
        width = arrays[f"first_norm{number}.weight"].shape[0]
        self._columns = width // HEADS
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        names = {"norm1": "first_norm{}", "norm2": "second_norm{}", "out": "attention{}"}
        names |= {"wide": "mlp{}_hidden", "narrow": "mlp{}"}
        for what in ("weight", "bias"):
            for own, ours in names.items():
                given = arrays[f"{ours.format(number)}.{what}"]
                self.get_submodule(own).get_parameter(what).data = given.clone()
            parts = [arrays[f"attention{number}_{one}.{what}"] for one in ("query", "key_value")]
            by_head = torch.cat(parts).unflatten(0, (3, HEADS, self._columns)).transpose(0, 1)
            self.qkv.get_parameter(what).data = by_head.flatten(0, 2).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """The sequence after both halves of the block."""
        projected = self.qkv(self.norm1(x)).unflatten(-1, (-1, 3, self._columns))
        query, key, value = projected.permute(3, 0, 2, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        found: Tensor = x + self.narrow(functional.gelu(self.wide(self.norm2(x))))
        return found


def blocks_of(arrays: Mapping[str, Array]) -> nn.Sequential:
    """The whole network: positions, blocks, and scores over all positions."""
    given = {name: torch.from_numpy(array) for name, array in arrays.items()}
    weight = given["scores.weight"]
    n = sum(name.startswith("first_norm") and name.endswith("weight") for name in given)
    scores = nn.Linear(weight.shape[-1], len(weight))
    scores.weight.data, scores.bias.data = weight.flatten(1).clone(), given["scores.bias"].clone()
    blocks = [Block(given, number) for number in range(n)]
    return nn.Sequential(Positions(given["positions.weight"]), *blocks, nn.Flatten(), scores)


def cuts_of(layers: nn.Module) -> dict[str, ParallelStyle]:
    """The styles of tensor parallelism: outputs, then inputs, twice in each block."""
    found: dict[str, ParallelStyle] = {}
    for name, module in layers.named_children():
        for first, last in (("qkv", "out"), ("wide", "narrow")) if isinstance(module, Block) else ():
            found[f"{name}.{first}"], found[f"{name}.{last}"] = ColwiseParallel(), RowwiseParallel()
    return found
