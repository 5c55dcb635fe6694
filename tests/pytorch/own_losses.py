"""Modules that take labels and return their own loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Nano(nn.Module):
    """A language model that returns scores and loss, with the labels already moved by one word."""

    def __init__(self, words: int = 9, units: int = 4) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(words, units), nn.Linear(units, words)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.head(torch.tanh(self.table(x)))
        return scores, functional.cross_entropy(scores.view(-1, scores.size(-1)), y.view(-1), ignore_index=-1)


class Shifted(Nano):
    """The loss alone, of scores and labels that are moved inside by slices."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        scores = self.head(torch.tanh(self.table(x)))[:, :-1].contiguous()
        return functional.cross_entropy(scores.view(-1, 9), y[..., 1:].reshape(-1), label_smoothing=0.1)


class Padded(Nano):
    """Labels that are moved by padding, so that the last position has none; a dictionary of results."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        scores = self.head(torch.tanh(self.table(x)))
        moved = functional.pad(y, (0, 1), value=-100)[..., 1:].contiguous()
        return {"loss": functional.cross_entropy(scores.view(-1, 9), moved.view(-1)), "scores": scores}


class Compared(nn.Module):
    """A loss that is a sum of several, of scores and targets of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 6)
        self.register_buffer("weights", torch.linspace(0.5, 1.5, 6))

    def forward(self, x: torch.Tensor, y: torch.Tensor, label: torch.Tensor) -> Any:
        scores = self.last(torch.relu(self.first(x)))
        logs = functional.log_softmax(scores, -1)
        losses = [
            functional.mse_loss(scores, y),
            functional.mse_loss(scores, y, reduction="sum") / x.size(0) / 2,
            functional.smooth_l1_loss(scores, y, beta=0.5),
            functional.huber_loss(scores, y, delta=0.25),
            functional.binary_cross_entropy_with_logits(scores, y, reduction="none").mean(),
            functional.kl_div(logs, y, reduction="batchmean"),
        ]
        labels = functional.cross_entropy(scores, label, weight=self.weights, reduction="sum") / x.shape[0]
        return sum(losses) * 0.5 + functional.nll_loss(logs, label) - 0.25 * labels
