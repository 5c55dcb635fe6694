"""Weighted sums among nodes of a user's own: which are recognised, and that they are right as products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels.node import NodeKernel
from partita.engine.kernels.nodes.loop_kernel import NodeLoopKernel
from partita.engine.kernels.nodes.loops import read_downward, read_upward
from partita.engine.kernels.nodes.sum_kernels import NodeFullSumKernel, NodePatchSumKernel
from partita.engine.kernels.nodes.sums import weighted_sum
from partita.engine.kernels.nodes.vectors import Signature
from partita.layers import Dense, Edges, Full, LocallyConnected2D, Node, OneToOne, Patch, per_edge, per_node
from tests.draws import examples
from tests.kernels.cases import Case, batches, case, cut_points, extents, pictures, play, seeds
from tests.kernels.drawn_nodes import function_of
from tests.kernels.node_functions import by_definition
from tests.properties.kernels import assert_same_bits, assert_true

UPWARD = {
    "loop": """
    total = bias
    for k in range(len(incoming)):
        total += weight[k] * incoming[k]
    return leak(total)""",
    "loop from zero": """
    total = 0.0 * incoming[0]
    for k in range(len(incoming)):
        total = incoming[k] * weight[k] + total
    total += bias
    if total > 0:
        return total
    return 0.25 * total""",
    "items": """
    total = 0
    for w, x in zip(weight, incoming):
        total += w * x
    return leak(total + bias)""",
    "dot": """
    return leak(np.dot(weight, incoming) + bias)""",
    "sum": """
    sums = (incoming * weight).sum() + bias
    return sums if sums > 0 else SLOPE * sums""",
    "product of vectors": """
    return max(bias + weight @ incoming, 0.25 * (bias + weight @ incoming))""",
}
DOWNWARD = {
    "the sum again": """
    delta = error * (1 if bias + np.dot(weight, incoming) > 0 else SLOPE)
    return delta * weight, delta * incoming, delta""",
    "delta": """
    delta = error if state > 0 else 0.25 * error
    return delta * weight, delta * incoming, delta""",
    "two returns": """
    if state > 0:
        return weight * error, incoming * error, error
    return error * weight / 4, error * incoming / 4, error / 4""",
    "filled arrays": """
    slope = 1.0
    if state <= 0:
        slope = 0.25
    errors = np.zeros_like(incoming)
    gradient = 0 * incoming
    for k in range(len(incoming)):
        errors[k] = error * slope * weight[k]
        gradient[k] = slope * error * incoming[k]
    return errors, gradient, slope * error""",
}
RIGHT = "dot", "delta"
SIGNATURE = Signature((("weight", "e"), ("bias", "n")), 1, "float64")
PARAMETERS = (("weight", per_edge()), ("bias", per_node()))


def node(upward: str, downward: str | None, wiring: Any, nodes: int | None = 3) -> Node:
    up = function_of(f"def function(incoming, weight, bias):{upward}\n")
    down = downward and function_of(f"def function(incoming, weight, bias, state, error):{downward}\n")
    return Node(wiring, up, down, PARAMETERS, None if nodes is None else (nodes,))


def played(given_case: Case) -> Any:
    kernel = given_case.kernel()
    assert isinstance(kernel, NodeKernel)
    return kernel.played


@pytest.mark.parametrize("up", [name for name in UPWARD if name != "product of vectors"])
def test_what_is_derived_from_a_weighted_sum_is_one(up: str) -> None:
    upward = node(UPWARD[up], None, Patch(2)).upward
    read = read_upward(upward, SIGNATURE), read_downward(upward, None, SIGNATURE)
    found = weighted_sum(*read, SIGNATURE.parameters)
    assert found is not None
    assert found.keeps_sums


@pytest.mark.parametrize(
    ("up", "down"), [*((name, "delta") for name in UPWARD), *(("dot", name) for name in DOWNWARD)]
)
def test_it_is_recognised_however_it_is_written(up: str, down: str) -> None:
    given_case = case(node(UPWARD[up], DOWNWARD[down], Patch(2)), (3, 3, 2), batch=3)
    assert isinstance(played(given_case), NodePatchSumKernel)
    assert_true(given_case, play(given_case))


NO_SUM = {
    "other products": ("return (weight * weight * incoming).sum() + bias", RIGHT[1]),
    "two sums": ("return np.dot(weight, incoming) + incoming.sum() + bias", RIGHT[1]),
    "an edge of its own": ("return np.dot(weight, incoming) + bias + weight[0]", RIGHT[1]),
    "every second": (
        "total = bias\n    for k in range(0, len(incoming), 2):\n        total += weight[k] * incoming[k]\n"
        "    return total",
        RIGHT[1],
    ),
    "not for all": (
        "return np.dot(weight, incoming) if bias > 0 else np.dot(weight, incoming * bias)",
        RIGHT[1],
    ),
}
NO_WAY_DOWN = {
    "another gradient of the bias": "return error * weight, error * incoming, 2 * error",
    "another gradient of the weight": "return error * weight, 2 * error * incoming, error",
    "errors of its own": "return error * weight * weight, error * incoming, error",
    "decay": "return error * weight, error * incoming + 0.1 * weight, error",
}


@pytest.mark.parametrize("name", [*NO_SUM, *NO_WAY_DOWN])
def test_what_is_no_weighted_sum_is_played_by_loops(name: str) -> None:
    up, down = NO_SUM[name] if name in NO_SUM else (UPWARD[RIGHT[0]], NO_WAY_DOWN[name])
    down = DOWNWARD.get(down, f"\n    {down}")
    up = up if up in UPWARD.values() else f"\n    {up}"
    layer = node(up, down, Patch(2))
    read = read_upward(layer.upward, SIGNATURE), read_downward(layer.upward, layer.downward, SIGNATURE)
    assert weighted_sum(*read, SIGNATURE.parameters) is None


@pytest.mark.parametrize("wiring", [OneToOne(), Edges([(0, 0), (1, 0), (2, 1)], nodes=3), Patch(2)])
def test_other_wirings_are_played_by_loops(wiring: Any) -> None:
    nodes = 2 if isinstance(wiring, Patch) else None
    shape = (4, 1) if isinstance(wiring, Patch) else (3,)  # patches of a line, not of a picture
    given_case = case(node(UPWARD["loop"], DOWNWARD["delta"], wiring, nodes), shape, batch=2)
    kernel = played(given_case)
    assert isinstance(kernel, NodeLoopKernel)
    assert_true(given_case, play(given_case))


def test_several_numbers_of_a_node_and_the_weight_last() -> None:
    def upward(incoming: Any, gain: Any, bias: Any, weight: Any) -> Any:
        return math.tanh(np.dot(incoming, weight) + bias + gain)

    def downward(incoming: Any, gain: Any, bias: Any, weight: Any, state: Any, error: Any) -> Any:
        delta = error * (1 - state**2)
        return delta * weight, delta, delta, delta * incoming

    learns = (("gain", per_node()), ("bias", per_node()), ("weight", per_edge()))
    for wiring, expected in ((Patch(2), NodePatchSumKernel), (Full(), NodeFullSumKernel)):
        given_case = case(Node(wiring, upward, downward, learns, (2,)), (3, 3, 2), batch=3)
        assert isinstance(played(given_case), expected)
        assert_true(given_case, play(given_case))


def test_a_sum_whose_errors_pass_as_they_are_needs_no_copy_of_them() -> None:
    down = "\n    return error * weight, error * incoming, error"
    for wiring in (Patch(2), Full()):
        given_case = case(
            node("\n    return np.dot(weight, incoming) + bias", down, wiring), (3, 3, 2), batch=3
        )
        kernel = given_case.kernel()
        assert isinstance(kernel, NodeKernel)
        assert kernel.played.arrays.grad_output is kernel.arrays.grad_output
        assert_true(given_case, play(given_case))


@pytest.mark.parametrize("wiring", [Patch(2), Full()])
def test_without_a_backward_function_the_sums_are_kept(wiring: Any) -> None:
    given_case = case(node(UPWARD["dot"], None, wiring), (3, 3, 2), batch=3)
    assert isinstance(played(given_case), NodePatchSumKernel | NodeFullSumKernel)
    by_hand = case(node(UPWARD["dot"], DOWNWARD["delta"], wiring), (3, 3, 2), batch=3)
    found, expected = play(given_case, 1), play(by_hand, 1)
    for one, other in zip(
        (found.state, *found.errors, *found.gradients),
        (expected.state, *expected.errors, *expected.gradients),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-12)


@by_definition
class OwnDense(Dense):
    """A subclass, played by its definition."""


@by_definition
class OwnLocal(LocallyConnected2D):
    """The same."""


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("kind", [OwnDense, OwnLocal])
def test_definitions_of_our_own_layers_are_recognised(kind: Any, use_bias: bool) -> None:
    sizes = (3,) if kind is OwnDense else (2, 2)
    given_case = case(kind(*sizes, activation="sigmoid", use_bias=use_bias), (3, 3, 2), batch=3)
    assert isinstance(played(given_case), NodeFullSumKernel | NodePatchSumKernel)
    assert_true(given_case, play(given_case))


@given(st.data(), pictures(), batches, seeds, extents, st.sampled_from(["valid", "same"]))
@settings(max_examples=examples(10))
def test_patches_whole_and_in_pieces(
    data: st.DataObject, picture: Any, batch: int, seed: int, stride: Any, padding: Any
) -> None:
    layer = node(UPWARD["loop"], DOWNWARD["delta"], Patch((3, 2), stride=stride, padding=padding), 5)
    given_case = case(layer, picture, batch=batch, seed=seed)
    _assert_true_in_pieces(data, given_case)


@given(st.data(), batches, seeds, st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(1, 7))
@settings(max_examples=examples(10))
def test_full_whole_and_in_pieces(
    data: st.DataObject, batch: int, seed: int, shape: list[int], nodes: int
) -> None:
    layer = node(UPWARD["loop"], DOWNWARD["delta"], Full(), nodes)
    _assert_true_in_pieces(data, case(layer, tuple(shape), batch=batch, seed=seed))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_full_with_more_senders_than_a_panel(dtype: Any) -> None:
    given_case = case(node(UPWARD["loop"], DOWNWARD["delta"], Full(), 9), (10, 7), batch=19, dtype=dtype)
    whole, tolerance = play(given_case), 1e-4 if dtype is np.float32 else 1e-9
    assert_true(given_case, whole, rtol=tolerance, atol=tolerance)
    assert_same_bits(play(given_case, 4, threads=2), whole)


def _assert_true_in_pieces(data: st.DataObject, given_case: Case) -> None:
    whole = play(given_case)
    assert_true(given_case, whole)
    cuts = data.draw(cut_points(given_case.grid.n_rows))
    assert_same_bits(play(given_case, *cuts, extra=data.draw(st.integers(0, 2))), whole)
    assert_same_bits(play(given_case, threads=3), whole)


@pytest.mark.parametrize("wiring", [Patch(2), Full()])
def test_gradients_of_blocks_of_rows_are_those_of_the_whole(wiring: Any) -> None:
    given_case = case(node(UPWARD["loop"], DOWNWARD["delta"], wiring, 5), (4, 3, 2), batch=4)
    kernel = given_case.kernel()
    kernel.forward()()
    whole = [np.full(p.shape, np.nan) for p in given_case.parameters]
    kernel.backward_parameters(whole)()
    for rows in ((0, 1), (1, 3)):
        block = [np.full((2 if rows[0] else 1, *p.shape[1:]), np.nan) for p in given_case.parameters]
        kernel.backward_parameters(block, rows)()
        for found, expected in zip(block, whole, strict=True):
            assert found.tobytes() == expected[slice(*rows)].tobytes()
