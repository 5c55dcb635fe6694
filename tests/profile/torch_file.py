"""A user's file with a module of PyTorch, and nothing that knows Partita."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Words(nn.Module):
    """A table of words, two layers with a function between, and scores of the next word."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 6)
        self.wide, self.narrow = nn.Linear(6, width), nn.Linear(width, 6)
        self.scores = nn.Linear(6, 20)

    def forward(self, words: Tensor, bias: Tensor) -> Tensor:
        """Scores `(examples, positions, words)`; `bias` has the extents of the words' numbers."""
        x = self.table(words) + bias
        found: Tensor = self.scores(x + self.narrow(torch.relu(self.wide(x))))
        return found


class Picture(nn.Module):
    """A function of pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """As large as the input, with three channels."""
        found: Tensor = torch.tanh(self.first(x))
        return found


class Labelled(nn.Module):
    """Needs an argument."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.scores = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        found: Tensor = self.scores(x)
        return found


class OwnLoss(nn.Module):
    """Returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(4, 3)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        """The mean loss."""
        return nn.functional.cross_entropy(self.scores(x), label)


class Waves(nn.Module):
    """Real parts of waves, which no layer computes."""

    def forward(self, x: Tensor) -> Tensor:
        """As many numbers."""
        return torch.fft.fft(x).real


def waves() -> nn.Module:
    """Returns a module with a part that stays whole."""
    return nn.Sequential(nn.Linear(4, 6), Waves(), nn.Linear(6, 3))


def five() -> nn.Module:
    """Returns a module of five classes."""
    return Labelled(5)


def nothing() -> int:
    """Returns no module."""
    return 3
