"""Kernels of numba.cuda (locally connected layers and nodes), by the tests of the kernels of a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels import NodeCompileError
from partita.engine.kernels.cuda.local import LocallyConnectedKernel
from partita.engine.kernels.cuda.node import NodeKernel
from partita.layers import LocallyConnected2D, Node, Patch, per_node
from tests.cuda.on_device import WITH_NUMBA, on_device
from tests.kernels import node_functions as functions
from tests.kernels.cases import case, cut_points, play, seeds
from tests.kernels.drawn_layers import locally_connected, wired
from tests.kernels.node_functions import largest, largest_errors
from tests.networks import LEARNS, energy, energy_errors
from tests.properties.kernels import assert_same_bits, assert_true

pytestmark = pytest.mark.parametrize("device", WITH_NUMBA)
small = st.tuples(st.integers(3, 5), st.integers(3, 4), st.integers(1, 2))
batches = st.sampled_from([1, 3, 6])


@given(st.data(), locally_connected(), small, batches, seeds)
@settings(max_examples=10)
def test_a_local_layer_equals_its_node_definition_in_pieces_to_the_bit(
    device: str, data: st.DataObject, layer: Any, picture: tuple[int, int, int], batch: int, seed: int
) -> None:
    given_case = case(layer, picture, batch=batch, seed=seed)
    cuts = data.draw(cut_points(given_case.grid.n_rows))
    with on_device(device) as kernels:
        whole = play(given_case)
        pieces = play(given_case, *cuts, extra=data.draw(st.integers(0, 2)))
    assert_true(given_case, whole)
    assert_true(given_case, pieces)
    if device != "cpu" or layer.activation in ("linear", "relu"):  # torch's others differ at ends of vectors
        assert_same_bits(pieces, whole)
    assert isinstance(kernels[0], LocallyConnectedKernel)


@given(st.data(), wired(), batches, seeds)
@settings(max_examples=10)
def test_a_node_equals_plain_python_in_pieces_to_the_bit(
    device: str, data: st.DataObject, drawn: tuple[Any, Any, Any], batch: int, seed: int
) -> None:
    wiring, shape, n = drawn
    layer = Node(wiring, functions.leaky_sum, functions.leaky_sum_errors, learns=functions.LEARNS, nodes=n)
    given_case = case(layer, shape, batch=batch, seed=seed)
    cuts = data.draw(cut_points(given_case.grid.n_rows))
    with on_device(device) as kernels:
        whole = play(given_case)
        assert_true(given_case, whole)
        assert_same_bits(play(given_case, *cuts, extra=data.draw(st.integers(0, 2))), whole)
    assert isinstance(kernels[0], NodeKernel)


ROUNDED = [
    LocallyConnected2D(5, 2, stride=2, padding=1, activation="sigmoid"),
    Node(Patch(2), functions.leaky_sum, functions.leaky_sum_errors, learns=functions.LEARNS, nodes=(2,)),
    Node(Patch(2, per_channel=True), energy, energy_errors, learns=LEARNS[energy][1]),
]


@pytest.mark.parametrize("layer", ROUNDED)
def test_in_bfloat16_it_rounds_what_it_stores(device: str, layer: Any) -> None:
    given_case = case(layer, (4, 3, 2), batch=5, dtype=np.float32).rounded
    with on_device(device):
        played = play(given_case)
    assert played.state.dtype == np.uint16
    assert played.gradients[0].dtype == np.float32
    assert_true(given_case, played, rtol=2.0**-6, atol=2.0**-4)


def test_a_node_with_an_array_of_its_own(device: str) -> None:
    layer = Node(Patch(2), largest, largest_errors, learns=(("scale", per_node()),), nodes=(2,))
    given_case = case(layer, (4, 3, 1), batch=3)
    with on_device(device):
        assert_true(given_case, play(given_case))
        assert_true(given_case, play(given_case, 1))


def test_nodes_that_share_weights_add_to_one_gradient(device: str) -> None:
    given_case = case(functions.OwnConv2D(3, 2, activation="tanh"), (4, 4, 2), batch=3)
    with on_device(device) as kernels:
        whole = play(given_case)
        assert_true(given_case, whole)
        cut = play(given_case, 1, 2)
    assert isinstance(kernels[0], NodeKernel)
    for found, expected in zip(cut.gradients, whole.gradients, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def test_a_function_that_a_gpu_cannot_run_is_refused_with_a_way_out(device: str) -> None:
    layer = Node(Patch(2), functions.root, functions.root_errors, nodes=(1,), name="mine")
    refused = pytest.raises(NodeCompileError, match=r"'mine': root cannot run on cuda:0, .* device is 'cpu'")
    with refused, on_device(device):
        case(layer, (3, 3, 1), batch=2).kernel()
