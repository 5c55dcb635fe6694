"""Pools: against the node definition and torch, in pieces to the bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.layers import AveragePool2D, L2Pool2D, MaxPool2D
from partita.layers.pooling import Pool2D
from tests.draws import examples
from tests.kernels.cases import batches, case, cut_points, pictures, play, seeds
from tests.kernels.drawn_layers import POOLS, pools
from tests.kernels.node_functions import by_definition
from tests.properties.kernels import assert_same_bits, assert_true
from tests.properties.layers import assert_ties_and_zeros, with_ties


@given(st.data(), pools(), pictures(), batches, seeds)
@settings(max_examples=examples(16))
def test_equals_its_node_definition_whole_and_in_pieces(
    data: st.DataObject, layer: Pool2D, picture: tuple[int, int, int], batch: int, seed: int
) -> None:
    given_case = case(layer, picture, batch=batch, seed=seed)
    cuts = data.draw(cut_points(given_case.grid.n_rows)) if data.draw(st.booleans()) else ()
    assert_true(given_case, play(given_case, *cuts, extra=data.draw(st.integers(0, 2))))


@given(st.data(), pools(), pictures(), st.sampled_from([1, 3, 16, 33]), seeds)
@settings(max_examples=examples(24))
def test_pieces_and_threads_give_the_bits_of_the_whole(
    data: st.DataObject, layer: Pool2D, picture: tuple[int, int, int], batch: int, seed: int
) -> None:
    given_case = case(layer, picture, batch=batch, seed=seed, dtype=np.float32)
    if data.draw(st.booleans()):
        given_case = with_ties(given_case)
    cuts = data.draw(cut_points(given_case.grid.n_rows))
    whole = play(given_case)
    assert_same_bits(play(given_case, *cuts, extra=data.draw(st.integers(0, 2))), whole)
    assert_same_bits(play(given_case, threads=3), whole)


@pytest.mark.parametrize("pool", POOLS)
def test_ties_and_zeros_as_the_definition_says(pool: type[Pool2D]) -> None:
    assert_ties_and_zeros(pool)


@pytest.mark.parametrize(
    ("pool", "torchs"),
    [
        (MaxPool2D(3, stride=2), torch.nn.MaxPool2d(3, 2)),
        (MaxPool2D(3, stride=2, padding=1), torch.nn.MaxPool2d(3, 2, padding=1)),
        (MaxPool2D(2, stride=1, padding=(1, 0)), torch.nn.MaxPool2d(2, 1, padding=(1, 0))),
        (AveragePool2D(3, stride=2), torch.nn.AvgPool2d(3, 2)),
        (AveragePool2D(3, stride=2, padding=1), torch.nn.AvgPool2d(3, 2, padding=1)),
        (
            AveragePool2D(3, stride=2, padding=1, count_include_pad=False),
            torch.nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
        ),
        (L2Pool2D(3, stride=2), torch.nn.LPPool2d(2, 3, 2)),
        (MaxPool2D(2, ceil_mode=True), torch.nn.MaxPool2d(2, ceil_mode=True)),
        (
            MaxPool2D((4, 2), stride=(4, 3), padding=1, ceil_mode=True),
            torch.nn.MaxPool2d((4, 2), (4, 3), padding=1, ceil_mode=True),
        ),
        (AveragePool2D((2, 4), ceil_mode=True), torch.nn.AvgPool2d((2, 4), ceil_mode=True)),
        (
            AveragePool2D(4, padding=2, ceil_mode=True, count_include_pad=False),
            torch.nn.AvgPool2d(4, padding=2, ceil_mode=True, count_include_pad=False),
        ),
    ],
    ids=str,
)
def test_equals_torch(pool: Pool2D, torchs: torch.nn.Module) -> None:
    given_case = case(pool, (9, 7, 4), batch=6)
    given_case.inputs[0][...] -= 3  # negative, nearly all: a zero on the padding would be the largest
    played = play(given_case)
    x = torch.from_numpy(given_case.inputs[0].transpose(3, 2, 0, 1).copy()).requires_grad_()
    state = torchs(x)
    state.backward(torch.from_numpy(given_case.error.transpose(3, 2, 0, 1).copy()))
    assert x.grad is not None
    np.testing.assert_allclose(played.state.transpose(3, 2, 0, 1), state.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(played.errors[0].transpose(3, 2, 0, 1), x.grad.numpy(), rtol=1e-12, atol=1e-14)


@by_definition
@dataclass(frozen=True)
class OwnMaxPool(MaxPool2D):
    """A layer of its own, played by its definition."""


@by_definition
@dataclass(frozen=True)
class OwnAveragePool(AveragePool2D):
    """The same."""


SETTINGS: dict[type, dict[str, Any]] = {MaxPool2D: {}, AveragePool2D: {"count_include_pad": False}}


@pytest.mark.parametrize("own", [pytest.param(OwnMaxPool, marks=pytest.mark.slow), OwnAveragePool])
def test_the_definition_pads_in_the_same_way(own: type[Pool2D]) -> None:
    built_in = own.__bases__[0]
    for pool in (own, built_in):
        layer = pool(3, padding="same", **SETTINGS[built_in])
        given_case = case(layer, (5, 4, 2), batch=3)
        given_case.inputs[0][...] -= 3
        assert_true(given_case, play(given_case, 1))


@pytest.mark.parametrize("pool", [pytest.param(OwnMaxPool, marks=pytest.mark.slow), MaxPool2D, AveragePool2D])
def test_padding_in_bfloat16(pool: type[Pool2D]) -> None:
    given_case = case(pool(3, padding="same"), (5, 4, 2), batch=3, dtype=np.float32)
    given_case.inputs[0][...] -= 3
    assert_true(given_case.rounded, play(given_case.rounded, 1), rtol=0.02, atol=0.05)
