"""Recurrent modules: several layers, both directions, states that they begin with and that they return."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from partita.engine import from_torch
from tests.pytorch.steps import BATCH, check

SEQUENCE = torch.empty(BATCH, 6, 8)
WORDS = torch.empty(BATCH, 6, dtype=torch.int64)


class Last(nn.Module):
    """Scores of what a recurrent module returns beside its output."""

    def __init__(self, kind: Any, *, both: bool = False, cell: bool = False, layers: int = 2) -> None:
        super().__init__()
        self.recurrent = kind(8, 5, layers, batch_first=True, bidirectional=both)
        self.head, self.both, self.cell = nn.Linear(10 if both else 5, 3), both, cell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, last = self.recurrent(x)
        if isinstance(last, tuple):
            last = last[self.cell]
        scores: torch.Tensor = self.head(torch.cat([last[-2], last[-1]], 1) if self.both else last[-1])
        return scores


class Translation(nn.Module):
    """A decoder that begins with the last states of an encoder, all of its layers."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.encoder, self.decoder = (kind(8, 5, 2, batch_first=True) for _ in range(2))
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        _, states = self.encoder(x)
        scores: torch.Tensor = self.head(self.decoder(y, states)[0])
        return scores


class Given(nn.Module):
    """A state that another layer computes, and zeros that are written out."""

    def __init__(self) -> None:
        super().__init__()
        self.begin, self.first = nn.Linear(4, 5), nn.GRU(8, 5, batch_first=True)
        self.second = nn.LSTM(5, 3, batch_first=True, bias=False)

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        states, _ = self.first(x, torch.tanh(self.begin(z)).unsqueeze(0))
        zeros = x.new_zeros(1, x.shape[0], 3), torch.zeros(1, x.size(0), 3)
        found: torch.Tensor = self.second(states, tuple(one.to(x.dtype) for one in zeros))[0]
        return found


class Learnt(nn.Module):
    """A recurrent module that begins with parameters, or with numbers that are no zeros."""

    def __init__(self, kind: Any, *, layers: int = 1, both: bool = False, ones: bool = False) -> None:
        super().__init__()
        n = layers * (2 if both else 1)
        self.recurrent = kind(8, 5, layers, batch_first=True, bidirectional=both)
        self.begin, self.cell = nn.Parameter(torch.randn(n, 1, 5)), nn.Parameter(torch.randn(n, 5))
        self.head, self.ones = nn.Linear(10 if both else 5, 3), ones

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        state: Any = self.begin.expand(-1, n, -1).contiguous()
        if self.ones:
            state = torch.ones(len(self.begin), n, 5, dtype=x.dtype)
        if isinstance(self.recurrent, nn.LSTM):
            cell = (
                torch.zeros_like(state) if self.ones else torch.tanh(self.cell).unsqueeze(1).repeat(1, n, 1)
            )
            state = state, cell
        scores: torch.Tensor = self.head(self.recurrent(x, state)[0])
        return scores


class Cells(nn.Module):
    """A loop over positions, with a state that is learnt and one of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.first = nn.Embedding(9, 8), nn.LSTMCell(8, 5)
        self.second, self.third = nn.GRUCell(5, 4), nn.RNNCell(4, 4, nonlinearity="relu")
        self.begin, self.head = nn.Parameter(torch.randn(4)), nn.Linear(4, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x, n = self.table(words), words.shape[0]
        state = cell = last = None
        second, found = self.begin.expand(n, -1), []
        for position in range(x.shape[1]):
            state, cell = self.first(x[:, position], None if state is None else (state, cell))
            second = self.second(state, second)
            last = self.third(second, last)
            found.append(self.head(last))
        return torch.stack(found, 1)


class LanguageModel(nn.Module):
    """Scores of the next word at each position, which stands before the examples if `positions_first`."""

    def __init__(self, kind: Any, *, positions_first: bool, both: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 6)
        self.recurrent = kind(6, 6, 2, batch_first=not positions_first, bidirectional=both)
        self.drop = nn.Dropout(0.0)
        self.decoder = nn.Linear(12 if both else 6, 9)
        if not both:
            self.decoder.weight = self.table.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        states, _ = self.recurrent(self.drop(self.table(words)))
        scores: torch.Tensor = self.decoder(self.drop(states))
        return scores


@pytest.mark.parametrize("machines", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 4))])
def test_a_language_model_with_tied_weights_on_any_number_of_parts(machines: int) -> None:
    torch.manual_seed(3)
    check(LanguageModel(nn.LSTM, positions_first=False), WORDS, machines=machines)


@pytest.mark.parametrize("both", [pytest.param(False, marks=pytest.mark.slow), True])
def test_positions_may_come_first(both: bool) -> None:
    torch.manual_seed(3)
    module = LanguageModel(nn.GRU, positions_first=True, both=both)
    net = check(module, WORDS.T, machines=2, examples_dim=1)
    assert net.output.shape == (6, 9)


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(lambda: Last(nn.GRU), marks=pytest.mark.slow),
        pytest.param(lambda: Last(nn.LSTM, both=True), marks=pytest.mark.slow),
        pytest.param(lambda: Last(nn.LSTM, cell=True), marks=pytest.mark.slow),
        lambda: Last(nn.LSTM, cell=True, both=True, layers=1),
    ],
)
def test_what_the_last_positions_return(module: Any) -> None:
    torch.manual_seed(3)
    net = check(module(), SEQUENCE, machines=3)
    assert net.output.shape == (3,)


@pytest.mark.slow
def test_states_of_another_layer_and_zeros_that_are_written_out() -> None:
    torch.manual_seed(3)
    check(Given(), SEQUENCE, torch.empty(BATCH, 4), machines=2)


@pytest.mark.parametrize("kind", [nn.LSTM, pytest.param(nn.GRU, marks=pytest.mark.slow)])
def test_a_decoder_begins_with_the_states_of_an_encoder(kind: Any) -> None:
    """No array joins the states of the layers on their way."""
    torch.manual_seed(3)
    net = check(Translation(kind), SEQUENCE, SEQUENCE, machines=2)
    assert "Concatenate" not in {grid.layer.kind for grid in net.graph().grids}


@pytest.mark.parametrize(
    "make",
    [
        lambda: Learnt(nn.LSTM),
        pytest.param(lambda: Learnt(nn.GRU, layers=2, both=True), marks=pytest.mark.slow),
        pytest.param(lambda: Learnt(nn.LSTM, layers=2, ones=True), marks=pytest.mark.slow),
        pytest.param(lambda: Last(nn.RNN, both=True), marks=pytest.mark.slow),
    ],
)
def test_states_that_are_learnt_or_written_out(make: Any) -> None:
    torch.manual_seed(3)
    check(make(), SEQUENCE, machines=2)


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 2])
def test_cells_in_a_loop_over_positions(machines: int) -> None:
    torch.manual_seed(3)
    net = check(Cells(), torch.empty(BATCH, 3, dtype=torch.int64), machines=machines)
    shared = [grid for grid in net.graph().grids if grid.name.startswith("first") and grid.parameters]
    assert len({one.name for grid in shared for one in grid.parameters}) == 4, "one weight for all positions"


def test_projections_and_packed_sequences_are_refused_with_a_sentence() -> None:
    class Packed(Last):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([6, 5, 4, 3]), batch_first=True)
            found: torch.Tensor = self.recurrent(packed)[1][0]
            return found

    with pytest.raises(ValueError, match=r"packs sequences.*padded sequences of one length"):
        from_torch(Packed(nn.GRU), (SEQUENCE,))
    module = Last(nn.LSTM, layers=1)
    module.recurrent = nn.LSTM(8, 7, proj_size=5, batch_first=True)
    with pytest.raises(ValueError, match="its states are projected"):
        from_torch(module, (SEQUENCE,))
