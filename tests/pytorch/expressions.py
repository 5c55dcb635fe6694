"""Modules of PyTorch for tests: arithmetic, attention and masks that people write out by hand."""

from __future__ import annotations

import math

import torch
from torch import nn


class Arithmetic(nn.Module):
    """Numbers, constants, parameters and functions in chains."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 5))
        self.shift = nn.Parameter(torch.tensor(0.25))
        self.register_buffer("table", torch.linspace(-1, 1, 15).reshape(3, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (2 - x / 3.0) * self.scale + self.table - self.shift
        y = torch.where(y > 0, y.abs().clamp(min=0.1).sqrt(), -y.pow(2)) * 0.5
        y = y + torch.rsqrt(x.square() + 1.0) - (-x).exp().log1p() + x.abs().add(0.5).log()
        y = torch.minimum(y, x) + torch.maximum(y, -x) + y.clamp(-0.5, 0.5)
        y = y.masked_fill(self.table > 0.5, 0.75).log_softmax(-1) + x.cumsum(1)
        return y * (x - x.mean(-1, keepdim=True)).sigmoid() / (1 + x.var(1, keepdim=True))


class Excited(nn.Module):
    """A block of pictures with activations of phones, and factors for channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.down, self.up = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1)
        self.layer_scale = nn.Parameter(torch.full((4, 1, 1), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.hardswish(nn.functional.relu6(self.first(x) * 3))
        factors = nn.functional.hardsigmoid(self.up(torch.relu(self.down(x.mean((2, 3), keepdim=True)))))
        x = x + self.layer_scale * (factors * x)
        scores: torch.Tensor = nn.functional.hardtanh(x).sum((2, 3)) / 7
        return scores


class Rotated(nn.Module):
    """Causal attention of queries and keys that turn as complex numbers; heads share keys and values."""

    def __init__(self, units: int = 8, heads: int = 4, positions: int = 6) -> None:
        super().__init__()
        self.heads, self.size = heads, units // heads
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, units))
        self.q, self.kv = nn.Linear(units, units, bias=False), nn.Linear(units, units)
        angles = torch.outer(torch.arange(positions).float(), 0.1 ** torch.arange(self.size // 2))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6))

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.turns.to(pairs.dtype)[None, :, None]).flatten(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, positions, _ = x.shape
        x = self.norm(x)
        k, v = self.kv(x).chunk(2, -1)
        q = self.rotate(self.q(x).view(n, positions, self.heads, self.size)).transpose(1, 2)
        k = self.rotate(k.view(n, positions, self.heads // 2, self.size)).transpose(1, 2)
        v = v.view(n, positions, self.heads // 2, self.size).transpose(1, 2)
        found = nn.functional.scaled_dot_product_attention(
            q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), is_causal=True, scale=0.5
        )
        grouped = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return (found + grouped).transpose(1, 2).reshape(n, positions, -1)


class Masked(nn.Module):
    """Attention with a slope for each head, written out three ways, behind a token and learned positions."""

    def __init__(self, units: int = 8, heads: int = 2, positions: int = 6) -> None:
        super().__init__()
        self.heads, self.size = heads, units // heads
        self.token = nn.Parameter(torch.linspace(-1, 1, units).reshape(1, 1, units))
        self.positions = nn.Embedding(9, units)
        self.qkv = nn.Parameter(torch.randn(units, 3 * units, generator=torch.Generator().manual_seed(1)) / 3)
        self.bias = nn.Parameter(torch.zeros(heads, 1, 1) + 0.1)

    def mask(self, n: int) -> torch.Tensor:
        places = torch.arange(n)
        far = (places[:, None] - places).abs() * torch.tensor([0.5, 0.25])[:, None, None]
        hidden = torch.ones(n, n, dtype=torch.bool).tril(2).logical_not()
        return torch.zeros(n, n).masked_fill(hidden, float("-inf")) - far

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.token.expand(x.size(0), -1, -1), x], dim=1)
        n, positions, units = x.shape
        x = x + self.positions(torch.arange(positions))
        q, k, v = (x @ self.qkv).view(n, positions, 3, self.heads, self.size).unbind(2)
        mask = self.mask(positions)
        first = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(self.size) + mask + self.bias
        states = torch.einsum("bhqk,bkhd->bqhd", first.softmax(-1), v)
        q, k, v = (one.transpose(1, 2).reshape(n * self.heads, positions, self.size) for one in (q, k, v))
        flat = torch.bmm(torch.bmm(q, k.transpose(1, 2)).mul(0.5).softmax(-1), v)
        flat = flat.view(n, self.heads, positions, self.size).transpose(1, 2)
        last: torch.Tensor = (states * 0.5 + flat).reshape(n, positions, units)
        return last[:, 0] * 2 + last[:, -1]
