"""Pools: against the node definition and torch, in pieces to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.layers import AveragePool2D, L2Pool2D, MaxPool2D
from partita.layers.pooling import Pool2D
from tests.kernels.cases import (
    Case,
    assert_same_bits,
    assert_true,
    batches,
    case,
    cut_points,
    extents,
    pictures,
    play,
    seeds,
)

POOLS = [MaxPool2D, AveragePool2D, L2Pool2D]


@st.composite
def layers(draw: st.DrawFn) -> Pool2D:
    size, stride = draw(extents), draw(st.one_of(st.none(), extents))
    height, width = (size, size) if isinstance(size, int) else size
    inside = st.tuples(st.integers(0, height - 1), st.integers(0, width - 1))
    padding = draw(st.one_of(st.just("valid"), st.just("same"), st.tuples(inside, inside).map(_pairs)))
    return draw(st.sampled_from(POOLS))(size, stride=stride, padding=padding)


def _pairs(ends: tuple[tuple[int, int], tuple[int, int]]) -> tuple[tuple[int, int], tuple[int, int]]:
    """((top, bottom), (left, right)) of (top, left) and (bottom, right)."""
    (top, left), (bottom, right) = ends
    return (top, bottom), (left, right)


@given(st.data(), layers(), pictures(), batches, seeds)
@settings(max_examples=40)
def test_equals_its_node_definition_whole_and_in_pieces(
    data: st.DataObject, layer: Pool2D, picture: tuple[int, int, int], batch: int, seed: int
) -> None:
    given_case = case(layer, picture, batch=batch, seed=seed)
    cuts = data.draw(cut_points(given_case.grid.n_rows)) if data.draw(st.booleans()) else ()
    assert_true(given_case, play(given_case, *cuts, extra=data.draw(st.integers(0, 2))))


@given(st.data(), layers(), pictures(), st.sampled_from([1, 3, 16, 33]), seeds)
@settings(max_examples=60)
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


def with_ties(given_case: Case) -> Case:
    """Whole numbers from -1 to 1: many patches have several maxima, or nothing but zeros."""
    few = np.rint(np.clip(given_case.inputs[0], -1, 1)).astype(given_case.dtype)
    return Case(given_case.grid, given_case.sources, (few,), (), given_case.error)


@pytest.mark.parametrize("pool", POOLS)
def test_ties_and_zeros_as_the_definition_says(pool: type[Pool2D]) -> None:
    given_case = with_ties(case(pool(3, stride=2), (7, 7, 2), batch=5))
    assert_true(given_case, play(given_case))
    assert_true(given_case, play(given_case, 1, 2))


@pytest.mark.parametrize("pool", POOLS)
def test_equals_torch(pool: type[Pool2D]) -> None:
    given_case = case(pool(3, stride=2), (9, 7, 4), batch=6)
    played = play(given_case)
    x = torch.from_numpy(given_case.inputs[0].transpose(3, 2, 0, 1).copy()).requires_grad_()
    state = {
        MaxPool2D: torch.nn.MaxPool2d(3, 2),
        AveragePool2D: torch.nn.AvgPool2d(3, 2),
        L2Pool2D: torch.nn.LPPool2d(2, 3, 2),
    }[pool](x)
    state.backward(torch.from_numpy(given_case.error.transpose(3, 2, 0, 1).copy()))
    assert x.grad is not None
    np.testing.assert_allclose(played.state.transpose(3, 2, 0, 1), state.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(played.errors[0].transpose(3, 2, 0, 1), x.grad.numpy(), rtol=1e-12)
