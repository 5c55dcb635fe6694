"""Layers whose kernels compute no bfloat16 run by their `forward`: what it returns is rounded once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from partita.layers import Add, AveragePool2D, L2Pool2D, Layer, MaxPool2D
from tests.kernels.cases import Case, case, play
from tests.properties.kernels import assert_same_bits, assert_true

LAYERS = [
    (MaxPool2D(3, stride=2), ((9, 7, 4),)),
    (AveragePool2D(3, stride=2), ((9, 7, 4),)),
    (L2Pool2D(2), ((8, 8, 3),)),
    (Add(), ((5, 3), (5, 3), (5, 3))),
]


def drawn(layer: Layer, shapes: Sequence[tuple[int, ...]]) -> Case:
    return case(layer, *shapes, batch=17, dtype=np.float32).rounded


@pytest.mark.parametrize(("layer", "shapes"), LAYERS)
@pytest.mark.parametrize("cuts", [(), (1, 2)])
def test_equals_its_node_definition(
    layer: Layer, shapes: Sequence[tuple[int, ...]], cuts: tuple[int, ...]
) -> None:
    given_case = drawn(layer, shapes)
    played = play(given_case, *cuts)
    assert played.state.dtype == played.errors[0].dtype == np.uint16
    assert_true(given_case, played, rtol=2.0**-8 * (1 + len(cuts)), atol=2.0**-8)


@pytest.mark.parametrize(("layer", "shapes"), LAYERS)
def test_threads_change_no_bit(layer: Layer, shapes: Sequence[tuple[int, ...]]) -> None:
    given_case = drawn(layer, shapes)
    assert_same_bits(play(given_case, threads=3), play(given_case))
