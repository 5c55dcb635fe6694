"""Networks over sequences as they are written in PyTorch: its own modules, batch first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks._recipe import Array


class Sequences(nn.Module):
    """A network whose modules carry the first values of ours, by name.

    Args:
        arrays: the first values of each parameter.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        super().__init__()
        self._arrays = arrays

    def fill(self, module: nn.Module, **names: str) -> None:
        """Gives a module our values: its parameters by the names of ours, which `+` joins."""
        for own, ours in names.items():
            value = torch.cat([torch.from_numpy(self._arrays[name]) for name in ours.split("+")])
            at = own.replace("__", ".")
            module.get_parameter(at).data = value.reshape(module.get_parameter(at).shape)


class Block(Sequences):
    """A transformer block that normalises first, and scores over all positions."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        super().__init__(arrays)
        width = arrays["norm1.weight"].shape[0]
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = nn.MultiheadAttention(width, 8, batch_first=True)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scores = nn.Linear(arrays["scores.weight"].shape[-1], 10)
        for number, norm in enumerate(self.norms, 1):
            self.fill(norm, weight=f"norm{number}.weight", bias=f"norm{number}.bias")
        self.fill(
            self.attention,
            in_proj_weight="attention_query.weight+attention_key_value.weight",
            in_proj_bias="attention_query.bias+attention_key_value.bias",
            out_proj__weight="attention.weight",
            out_proj__bias="attention.bias",
        )
        for name in ("wide", "narrow", "scores"):
            self.fill(self.get_submodule(name), weight=f"{name}.weight", bias=f"{name}.bias")
        mask = nn.Transformer.generate_square_subsequent_mask(arrays["positions.weight"].shape[0])
        self.positions, self.mask = (
            nn.Parameter(torch.from_numpy(arrays["positions.weight"])),
            nn.Buffer(mask),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.positions
        normal = self.norms[0](x)
        attended, _ = self.attention(
            normal, normal, normal, attn_mask=self.mask, is_causal=True, need_weights=False
        )
        x = x + attended
        x = x + self.narrow(functional.gelu(self.wide(self.norms[1](x))))
        scores: Tensor = self.scores(x.flatten(1))
        return scores


class Recurrent(Sequences):
    """An LSTM, and scores over its last state."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        super().__init__(arrays)
        rows, features = arrays["lstm.weight_ih"].shape
        self.lstm = nn.LSTM(features, rows // 4, batch_first=True)
        self.scores = nn.Linear(rows // 4, 10)
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        self.fill(self.lstm, **{f"{name}_l0": f"lstm.{name}" for name in names})
        self.fill(self.scores, weight="scores.weight", bias="scores.bias")

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.lstm(x)[0][:, -1])
        return scores


class Words(Sequences):
    """A table of words, and two dense layers over all positions."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        super().__init__(arrays)
        classes, units = arrays["table.weight"].shape
        hidden, inputs = arrays["hidden.weight"].shape
        self.table = nn.Embedding(classes, units)
        self.hidden, self.scores = nn.Linear(inputs, hidden), nn.Linear(hidden, 1000)
        self.fill(self.table, weight="table.weight")
        for name in ("hidden", "scores"):
            self.fill(self.get_submodule(name), weight=f"{name}.weight", bias=f"{name}.bias")

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.scores(torch.relu(self.hidden(self.table(words).flatten(1))))
        return scores


SEQUENCES: Final[Mapping[str, type[Sequences]]] = {"transformer": Block, "lstm": Recurrent, "words": Words}
"""By the name of the network."""
