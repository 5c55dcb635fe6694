"""Derived backward functions: of any drawn function, in loops and in torch, against differences."""

from __future__ import annotations

import math
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings

from partita.engine.kernels import Array, ThreadPool
from partita.engine.kernels.node import _in_torch
from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.loops import read_downward
from partita.engine.kernels.nodes.vectors import downward_text
from partita.layers import Edges, Node, OneToOne, per_edge, per_node
from tests.draws import examples
from tests.kernels.cases import case, play, seeds
from tests.kernels.drawn_nodes import as_plain_python, function_of, upward
from tests.kernels.four_nodes import BATCH, COUNTS, SENDERS, SIGNATURE, Nodes, answer
from tests.properties.kernels import assert_true

LEARNS = (("weight", per_edge()), ("bias", per_node()))


def slopes(function: FunctionType, given: tuple[Any, ...]) -> list[Array]:
    """Differences of a function for each number that it is given; NaN at a kink."""
    return [_slopes(function, given, i) for i in range(len(given))]


def _slopes(function: FunctionType, given: tuple[Any, ...], which: int) -> Array:
    def at(place: tuple[int, ...], by: float) -> float:
        moved = [np.array(value, float) if np.ndim(value) else float(value) for value in given]
        if place:
            moved[which][place] += by
        else:
            moved[which] += by
        return float(answer(function, *moved))

    found = np.empty(np.shape(given[which]))
    for place in np.ndindex(found.shape):
        wide, narrow = ((at(place, by) - at(place, -by)) / (2 * by) for by in (1e-5, 3e-6))
        agree = abs(wide - narrow) <= 1e-4 * (1 + abs(wide))
        found[place] = narrow if agree else np.nan
    return found


def expected_gradients(function: FunctionType, nodes: Nodes) -> tuple[Array, Array, Array]:
    """Errors, and gradients of the weights and the biases, from differences."""
    errors, weight, bias = np.zeros_like(nodes.x), np.zeros_like(nodes.weight), np.zeros_like(nodes.bias)
    for n, e in np.ndindex(len(COUNTS), BATCH):
        edges, error = slice(nodes.offsets[n], nodes.offsets[n + 1]), nodes.error[n, e]
        of_incoming, of_weight, of_bias = slopes(function, nodes.given(n, e))
        for sender, slope in zip(nodes.senders[edges], of_incoming, strict=True):
            errors[sender, e] += slope * error if sender >= 0 else 0
        weight[edges] += of_weight * error
        bias[n] += of_bias * error
    return errors, weight, bias


def assert_agrees(found: Array, expected: Array) -> None:
    """Compares where the differences are known."""
    known = np.isfinite(expected)
    np.testing.assert_allclose(found[known], expected[known], rtol=2e-4, atol=2e-4)


def _played(loops: dict[str, Any], nodes: Nodes) -> tuple[Array, Array, Array]:
    """Errors, and gradients of the weights and the biases, by loops."""
    found, ends = np.zeros((SENDERS, BATCH)), (np.full(len(COUNTS), -1), np.full(len(COUNTS), SENDERS))
    given_arrays = nodes.weight, nodes.bias, nodes.state, nodes.error
    loops["backward_input"](*nodes.table, *ends, *given_arrays, found, 0, SENDERS)
    weights, biases = np.zeros_like(nodes.weight), np.zeros_like(nodes.bias)
    loops["backward_parameters"](*nodes.table, *given_arrays, weights, biases, 0, len(COUNTS), 0, 0)
    return found, weights, biases


@given(seeds.map(upward), seeds)
@settings(max_examples=examples(20))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_loops_of_any_function_have_its_slopes(text: str, seed: int) -> None:
    function, nodes = function_of(text), Nodes(seed)
    try:
        loops = as_plain_python(downward_text(read_downward(function, None, SIGNATURE), SIGNATURE), tile=2)
    except ir.Unsupported as refused:
        if "change more than once" not in str(refused) and "may not be there" not in str(refused):
            raise
        reject()
    nodes.state = nodes.states(function)
    errors, weight, bias = expected_gradients(function, nodes)
    found, weights, biases = _played(loops, nodes)
    for one, other in ((found, errors), (weights, weight), (biases, bias)):
        assert_agrees(one, other)


@pytest.mark.parametrize("over", ["n - 1, -1, -1", "n - 1, 0, -2", "n - 2, -1, -2", "n - 1, -1, -3"])
@pytest.mark.parametrize("index", ["k", "-1 - k"])
def test_loops_that_count_down_have_slopes(over: str, index: str) -> None:
    """Of a linear recurrence, and of one whose slopes need the numbers that it carries."""
    for carried in ("0.5 * t", "0.5 * t * t"):
        head = "def function(incoming, weight, bias):\n    n = len(incoming)\n    t = bias"
        loop = f"    for k in range({over}):\n        t = {carried} + weight[k] * incoming[{index}]"
        function = function_of(f"{head}\n{loop}\n    return t")
        nodes = Nodes(3)
        loops = as_plain_python(downward_text(read_downward(function, None, SIGNATURE), SIGNATURE), tile=2)
        nodes.state = nodes.states(function)
        for one, other in zip(_played(loops, nodes), expected_gradients(function, nodes), strict=True):
            assert_agrees(one, other)


@given(seeds.map(upward), seeds)
@settings(max_examples=examples(15), deadline=None)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_torch_computes_any_function_and_its_slopes(text: str, seed: int) -> None:
    function, nodes = function_of(text), Nodes(seed)
    played = _in_torch_of(function, nodes)
    np.testing.assert_allclose(played[0], nodes.states(function), rtol=1e-9, atol=1e-9)
    errors, weight, bias = expected_gradients(function, nodes)
    for one, other in zip(played[1:], (errors, weight, bias), strict=True):
        assert_agrees(one, other)


@pytest.mark.parametrize(
    "body",
    [
        "return max(0.1, math.sqrt(incoming[0])) * weight[0] + bias",
        "return np.maximum(math.sqrt(incoming[0]) * weight[0] - 9.0, bias)",
        "return min(0.3, max(0.1, 2.0 - 3.0 * weight[0] - math.sqrt(incoming[0]))) * bias + weight[0]",
        "y = math.sqrt(incoming[0])\n    return max(0.1, y * weight[0] - y - 9.0) + max(bias, 0.2 * y)",
        "y = incoming[0]\n    return max(0.1, y * (1.0 / (y - y)) * weight[0]) * bias",
        "y = math.sqrt(incoming[0])\n    s = bias\n    if y > 1.0:\n        s = y * weight[0]\n    return s",
        "s = bias\n    for i in range(len(incoming)):\n        s += np.where(weight[i] > 1.0, "
        "weight[i] / incoming[i], math.sqrt(incoming[i]) ** 0.5 * 0.0)\n    return max(s, 0.1)",
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_number_that_is_not_chosen_has_no_gradient_however_steep_it_is(body: str) -> None:
    function, nodes = function_of(f"def function(incoming, weight, bias):\n    {body}"), Nodes(0)
    nodes.x[...], nodes.weight[...], nodes.bias[...], nodes.error[...] = 0, 0.5, 0.7, 1
    nodes.state = np.full_like(nodes.error, 0.7)
    loops = as_plain_python(downward_text(read_downward(function, None, SIGNATURE), SIGNATURE), tile=2)
    errors, gradients, biases = _played(loops, nodes)
    _, in_torch, *parameters = _in_torch_of(function, nodes)
    assert not errors.any() and not in_torch.any()
    assert np.isfinite(gradients).all()
    for one, other in zip(parameters, (gradients, biases), strict=True):
        np.testing.assert_allclose(one, other)


def _in_torch_of(function: FunctionType, nodes: Nodes) -> list[Array]:
    """The same four nodes as a layer; a sender beyond all others stands for padding."""
    for n in range(len(COUNTS)):
        own = nodes.senders[nodes.offsets[n] : nodes.offsets[n + 1]]
        own[...] = np.sort(np.where(own < 0, SENDERS, own))
    receivers = np.repeat(np.arange(len(COUNTS)), COUNTS)
    pairs = [(int(sender), int(n)) for sender, n in zip(nodes.senders, receivers, strict=True)]
    nodes.senders[nodes.senders == SENDERS] = -1
    layer = Node(Edges(pairs, nodes=len(COUNTS)), function, None, LEARNS)
    given_case = case(layer, (SENDERS + 1,), batch=BATCH)
    given_case.inputs[0][:SENDERS], given_case.inputs[0][SENDERS] = nodes.x, 0
    given_case.parameters[0][...], given_case.parameters[1][...] = nodes.weight, nodes.bias
    given_case.error[...] = nodes.error
    whole = ((0, SENDERS + 1),)
    context = replace(given_case.context(), windows=whole, grad_windows=whole)
    kernel = _in_torch(context, given_case.arrays(context), ThreadPool(1))
    assert kernel is not None
    kernel.forward()()
    kernel.backward_input(0, whole, accumulate=False)()
    gradients = [np.zeros(p.shape) for p in given_case.parameters]
    kernel.backward_parameters(gradients)()
    return [kernel.arrays.output, kernel.arrays.grad_input(0)[:SENDERS], *gradients]


def gate(incoming, weight, bias):  # type: ignore[no-untyped-def]
    return incoming[0] * weight[0] / (1.0 + math.exp(-weight[1] * incoming[1] - bias))


def gate_errors(incoming, weight, bias, state, error):  # type: ignore[no-untyped-def]
    open_by = 1.0 / (1.0 + math.exp(-weight[1] * incoming[1] - bias))
    by_sum = error * state * (1.0 - open_by)
    errors, of_weight = 0.0 * incoming, 0.0 * incoming
    errors[0], errors[1] = error * weight[0] * open_by, by_sum * weight[1]
    of_weight[0], of_weight[1] = error * incoming[0] * open_by, by_sum * incoming[1]
    return errors, of_weight, by_sum


@pytest.mark.slow
def test_two_inputs_in_loops_and_in_torch() -> None:
    derived = case(Node(OneToOne(), gate, None, LEARNS), (4,), (4,), batch=3)
    by_hand = case(Node(OneToOne(), gate, gate_errors, LEARNS), (4,), (4,), batch=3)
    expected = play(by_hand, 2)
    assert_true(by_hand, expected)
    found = play(derived, 2)
    context = derived.context()
    kernel = _in_torch(context, derived.arrays(context), ThreadPool(1))
    assert kernel is not None
    kernel.forward()()
    for source in (0, 1):
        kernel.backward_input(source, ((0, 4),), accumulate=False)()
    gradients = [np.zeros(p.shape) for p in derived.parameters]
    kernel.backward_parameters(gradients)()
    grads = [kernel.arrays.grad_input(source) for source in (0, 1)]
    wanted = expected.state, *expected.errors, *expected.gradients
    for one in ((found.state, *found.errors, *found.gradients), (kernel.arrays.output, *grads, *gradients)):
        for array, other in zip(one, wanted, strict=True):
            np.testing.assert_allclose(array, other, rtol=1e-6, atol=1e-12)
