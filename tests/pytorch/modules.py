"""Modules of PyTorch for tests: what people write."""

from __future__ import annotations

import torch
from torch import nn


class Residual(nn.Module):
    """Two convolutions with batch normalisation beside their input."""

    def __init__(self, channels: int, rate: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels, momentum=0.25)
        self.dropout = nn.Dropout(rate, inplace=True)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.relu(self.dropout(self.norm(self.first(x))))
        return torch.relu(x + self.second(found))


class Language(nn.Module):
    """Scores of the next word, by an LSTM over words whose embedding is also the last layer's weight."""

    def __init__(self, words: int, units: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, units)
        self.recurrent = nn.LSTM(units, units, batch_first=True)
        self.scores = nn.Linear(units, words, bias=False)
        self.scores.weight = self.embedding.weight
        self.register_buffer("temperature", torch.tensor(2.0))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        states, _ = self.recurrent(self.embedding(words))
        scores: torch.Tensor = self.scores(states[:, -1]) / self.temperature
        return scores


class Pictures(nn.Module):
    """A residual network of 8 x 8 pictures, as torchvision writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        )
        self.block = Residual(4)
        self.down = nn.Conv2d(4, 6, 1, stride=2, bias=False)
        self.deep = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.down(self.block(self.stem(x)))
        x = nn.functional.gelu(self.deep(x)) * x
        scores: torch.Tensor = self.head(torch.flatten(self.pool(x), 1))
        return scores


class Plain(nn.Module):
    """Convolutions and pools before dense layers: a flattened picture has the module's order."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.GroupNorm(2, 4),
            nn.AvgPool2d(3, 1, 1),
        )
        self.pool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 3, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.features(x))
        scores: torch.Tensor = self.classifier(x.view(x.size(0), -1))
        return scores


class Decoder(nn.Module):
    """A block of a transformer, written out: heads by views and transpositions."""

    def __init__(self, units: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(units) for _ in range(2))
        self.qkv = nn.Linear(units, 3 * units)
        self.out = nn.Linear(units, units, bias=False)
        self.mlp = nn.Sequential(nn.Linear(units, 12), nn.SiLU(), nn.Linear(12, units))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, positions, units = x.shape
        q, k, v = self.qkv(self.norms[0](x)).split(units, dim=2)
        q, k, v = (one.view(n, positions, self.heads, -1).transpose(1, 2) for one in (q, k, v))
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(n, positions, units))
        last: torch.Tensor = x + self.mlp(self.norms[1](x))
        return last


class Texts(nn.Module):
    """Convolutions over words, beside recurrent layers, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4, padding_idx=0)
        self.convolution = nn.Conv1d(4, 3, 3)
        self.recurrent = nn.GRU(4, 5, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.table(words)
        local = self.convolution(x.transpose(1, 2)).mean(dim=-1)
        states, _ = self.recurrent(x)
        scores: torch.Tensor = self.head(torch.cat([local, states[:, -1]], dim=1).softmax(-1))
        return scores


class InPlace(nn.Module):
    """Operations in place whose results are read by another name; a table that is also the last weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.last.weight = self.table.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.table(words) * self.table(words)
        before = nn.functional.leaky_relu(x + x)
        nn.functional.elu_(x)
        first, second = nn.functional.softplus(x + before).chunk(2, dim=1)
        pooled = nn.functional.adaptive_avg_pool1d(first.transpose(1, 2), 1).squeeze(-1)
        scores: torch.Tensor = self.last(pooled + second.unflatten(2, (2, 2)).flatten(2)[:, 0])
        return scores


class Strange(nn.Module):
    """A part that no layer is, among parts that are."""

    class Fourier(nn.Module):
        """Real parts of Fourier's transform, with a scale that learns."""

        def __init__(self, units: int) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.full((units,), 0.5))

        def forward(self, x: torch.Tensor, power: int = 1) -> torch.Tensor:
            return torch.fft.fft(x).real * self.scale**power

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 6), self.Fourier(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(self.middle(self.first(x), power=2))
        return scores
