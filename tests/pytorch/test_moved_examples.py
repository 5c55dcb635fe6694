"""Modules that move the examples from axis 0, and merge them with other dimensions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from partita.layers import Attention
from tests.pytorch.steps import BATCH, check

SEQUENCE = torch.empty(BATCH, 6, 8)


class Attending(nn.Module):
    """Attention of a sequence to itself or to another, without its weights."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, **settings)

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        other = x if other is None else other
        found: torch.Tensor = self.attention(x, other, other, need_weights=False)[0]
        return found


class Turned(nn.Module):
    """Operations on positions that stand before the examples, and on both in one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.last = nn.LayerNorm(8), nn.Linear(8, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.transpose(0, 1)  # positions first
        n = x.shape[1]
        together = self.first(self.norm(x).reshape(-1, 8))  # positions and examples are one dimension
        left, right = together.view(6, n, 6).chunk(2, dim=-1)
        joined = torch.cat([left * right, left.softmax(0)], dim=2)
        first, second = joined.permute(2, 0, 1).unflatten(0, (2, 3)).unbind(0)
        joined = joined + torch.cat([first, second]).permute(1, 2, 0)
        scores: torch.Tensor = self.last(torch.relu(joined[1:])).mean(0)
        return scores


@pytest.mark.parametrize("batch_first", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize("machines", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 4))])
def test_attention_is_one_layer_between_products(machines: int, batch_first: bool) -> None:
    torch.manual_seed(3)
    dim = int(not batch_first)
    like = SEQUENCE.transpose(0, 1) if dim else SEQUENCE
    net = check(Attending(batch_first=batch_first), like, machines=machines, examples_dim=dim)
    assert net.output.shape == (6, 8)
    assert sum(isinstance(grid.layer, Attention) for grid in net.graph().grids) == 1


@pytest.mark.parametrize("machines", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_operations_on_dimensions_that_have_the_examples(machines: int) -> None:
    torch.manual_seed(3)
    net = check(Turned(), SEQUENCE, machines=machines)
    assert net.output.shape == (2,)


class Transformer(nn.Module):
    """PyTorch's encoder and decoder between an embedding and scores."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.table, self.dim = nn.Embedding(9, 8), int(not batch_first)
        self.model = nn.Transformer(8, 2, 1, 1, 12, dropout=0.0, batch_first=batch_first)
        self.scores = nn.Linear(8, 9)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.scores(self.model(self.table(source), self.table(target)))
        return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("machines", [1, 2, 3, 4])
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_transformer_of_an_encoder_and_a_decoder(batch_first: bool, machines: int) -> None:
    torch.manual_seed(3)
    words = torch.empty((BATCH, 6) if batch_first else (6, BATCH), dtype=torch.int64)
    target = words[:, :5] if batch_first else words[:5]
    check(
        Transformer(batch_first=batch_first),
        words,
        target,
        machines=machines,
        examples_dim=int(not batch_first),
    )


@pytest.mark.parametrize("norm_first", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_stack_of_encoders(norm_first: bool) -> None:
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=False, norm_first=norm_first)
    module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    check(module, SEQUENCE.transpose(0, 1), machines=3, examples_dim=1)


def test_attention_from_one_sequence_to_another() -> None:
    """Its one weight for queries, keys and values is split in PyTorch, and stays one parameter here."""
    torch.manual_seed(3)
    module = Attending(batch_first=True)
    net = check(module, SEQUENCE, torch.empty(BATCH, 5, 8), machines=2)
    assert {one.name for one in net.origins.values()} == {name for name, _ in module.named_parameters()}
