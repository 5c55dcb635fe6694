"""Copies between orders of axes, against PyTorch's; and what a kernel of `forward` keeps of a pass."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels import orders
from partita.engine.kernels.form_backward import derived, root
from partita.layers import Layer, OneToOne
from tests.draws import examples
from tests.kernels.cases import case

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=5).filter(lambda sizes: np.prod(sizes) < 60_000)


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """Tensors of few and of many numbers, with their axes in any order, and parts of larger ones."""
    sizes = draw(SIZES)
    if draw(st.booleans()):  # as tiles are for
        sizes[0] = -(-5000 // int(np.prod(sizes[1:], dtype=int)))
    margins = [draw(st.sampled_from([0, 0, 3])) for _ in sizes]
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
    whole = torch.arange(np.prod(np.add(sizes, margins)), dtype=torch.float64).to(dtype)
    places = tuple(slice(margin, None) for margin in margins)
    found = whole.reshape(*np.add(sizes, margins))[places]
    return found.permute(draw(st.permutations(range(found.dim()))))


def test_copies_into_some_examples_of_an_array() -> None:
    array, found = torch.zeros(30, 20, 11), torch.randn(7, 30, 20)
    orders.copy(array[..., 2:9], found.permute(1, 2, 0))
    assert torch.equal(array[..., 2:9], found.permute(1, 2, 0))
    assert not array[..., :2].any() and not array[..., 9:].any()


@given(views(), views())
@settings(max_examples=examples(60))
def test_copies_have_every_number_in_its_place(view: torch.Tensor, other: torch.Tensor) -> None:
    target = torch.full(view.shape, -1.0, dtype=view.dtype)
    orders.copy(target, view)
    assert torch.equal(target, view)
    wide = torch.full((*view.shape[:-1], view.shape[-1] + 2), -1.0, dtype=view.dtype)
    orders.copy(wide[..., 1:-1], view)  # into a part of a larger one
    assert torch.equal(wide[..., 1:-1], view) and (wide[..., :: wide.shape[-1] - 1] == -1).all()
    lasting = orders.contiguous(view)
    assert lasting.is_contiguous() and torch.equal(lasting, view)
    back = orders.like(other.contiguous(), other.stride())
    assert torch.equal(back, other)


def test_a_prepared_copy_takes_sources_in_any_order_of_memory() -> None:
    place = torch.zeros((5, 6, 40, 8))[:, :, 4:36]
    write = orders.Copy(place, (2, 3, 1, 0))
    pictures = torch.randn(8, 32, 5, 6)
    last = pictures.contiguous(memory_format=torch.channels_last)
    wide = torch.cat([pictures, pictures], 1).contiguous(memory_format=torch.channels_last)[:, 32:]
    for source in (pictures, last, wide, last):
        place.zero_()
        write(source)
        assert torch.equal(place, pictures.permute(2, 3, 1, 0))


def test_the_tiles_are_used_where_examples_change_their_place() -> None:
    picture = torch.zeros(9, 8, 6, 32)
    for given_view in (
        picture.permute(3, 0, 1, 2),  # to examples first
        torch.zeros(32, 9, 8, 6).permute(1, 2, 3, 0),  # and back
        torch.zeros(32, 6, 72).permute(2, 1, 0),  # from channels first
        torch.zeros(9, 48, 32).transpose(1, 2),
    ):
        assert orders._matrices(torch.empty(given_view.shape), given_view) is not None, given_view.stride()
    assert orders._matrices(torch.empty(picture.shape), picture) is None


def test_gradients_pass_through_copies_and_begin_in_the_order_of_the_output() -> None:
    x = torch.randn(12, 20, 32, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(12, 20, 32, dtype=torch.float64)
    seen = []
    first = orders.contiguous(x.permute(2, 0, 1))
    first.register_hook(lambda found: seen.append(found.stride()))
    (found,) = derived([root((first * first).permute(1, 2, 0), grad)], [x])
    assert torch.equal(found, 2 * x.detach() * grad)
    assert seen == [first.stride()]


@dataclass(frozen=True)
class Noted(Layer):
    """The negative of its input; notes its results."""

    name: str | None = None
    definition = None
    connectivity = OneToOne()

    def shape(self, sources):
        return sources[0]

    def forward(self, step, inputs, parameters):
        found = -inputs[0]
        NOTES.append(weakref.ref(found))
        return found


@dataclass(frozen=True)
class NotedBackward(Noted):
    """The same with a backward pass of its own."""

    def backward(self, step, inputs, parameters, output, grad):
        found = -grad
        NOTES.append(weakref.ref(found))
        return (found,), ()


NOTES: list[Any] = []


@pytest.mark.parametrize("layer", [Noted(), NotedBackward()], ids=lambda layer: layer.kind)
def test_what_is_computed_is_freed_when_it_is_written(layer: Layer) -> None:
    """An output that no gradient needs at once; gradients with the last call of the backward pass."""
    NOTES.clear()
    kernel = case(layer, (6, 4), batch=3).kernel()
    kernel.backward_calls = 2
    parts = [kernel.backward_input(0, (rows,), accumulate=False) for rows in ((0, 2), (2, 6))]
    for _ in range(2):
        kernel.forward()()
        for part in parts:
            part()
        np.testing.assert_array_equal(kernel.arrays.grad_input(0), -kernel.arrays.own_grad)
        assert not any(note() for note in NOTES), "it is kept"
    assert len(NOTES) == 2 * (1 + isinstance(layer, NotedBackward))
