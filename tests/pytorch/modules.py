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
        self.dropout = nn.Dropout(rate)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.relu(self.norm(self.first(x)))
        return torch.relu(x + self.second(self.dropout(found)))


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
