"""The kernels that are written for a user's functions, run as plain Python by one thread, against the
functions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from partita.engine.kernels.cuda.node_text import downward_text, upward_text
from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.source import written
from tests.kernels.cases import seeds
from tests.kernels.cuda_text import plain
from tests.kernels.drawn_nodes import downward, function_of, upward
from tests.kernels.four_nodes import BATCH, COUNTS, SENDERS, SIGNATURE, Nodes

WIDTH = max(COUNTS)


def table(nodes: Nodes) -> tuple[Any, ...]:
    """First arguments of every kernel: the table without the zeros of padding, and its width."""
    x, _, *rest, _ = nodes.table
    return x, *rest


def receivers(nodes: Nodes) -> tuple[Any, Any, Any]:
    """Receivers of each sender in ascending order, and the edges to them."""
    edges = [(n, k) for n, count in enumerate(COUNTS) for k in range(count)]
    receivers_of = [
        [(n, k) for n, k in edges if nodes.senders[nodes.offsets[n] + k] == sender]
        for sender in range(SENDERS)
    ]
    starts = np.cumsum([0, *map(len, receivers_of)])
    return starts, *np.array([pair for pairs in receivers_of for pair in pairs]).reshape(-1, 2).T


@given(seeds.map(upward), seeds)
@settings(max_examples=60)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_any_upward_equals_plain_python(text: str, seed: int) -> None:
    function, nodes = function_of(text), Nodes(seed)
    source = written(function)
    assert source is not None
    kernels = plain(upward_text(source, SIGNATURE, WIDTH))
    state = np.full((len(COUNTS), BATCH), np.nan)
    kernels["forward"](*table(nodes), nodes.weight, nodes.bias, state)
    np.testing.assert_allclose(state, nodes.states(function), rtol=1e-9, atol=1e-9)


@given(seeds.map(downward), seeds)
@settings(max_examples=60)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_any_downward_equals_plain_python(text: str, seed: int) -> None:
    function, nodes = function_of(text), Nodes(seed)
    source = written(function)
    assert source is not None
    kernels = plain(downward_text(source, SIGNATURE, WIDTH))
    errors, weight, bias = nodes.backward(function)
    given_arrays = *table(nodes), nodes.weight, nodes.bias, nodes.state, nodes.error
    found = np.full((SENDERS + 2, BATCH), np.nan)
    for low, high in ((-1, 4), (4, SENDERS + 1)):  # two rows that are not here, without receivers
        kernels["backward_input"](
            *given_arrays, *receivers(nodes), found[low + 1 : high + 1], low, high, False
        )
    np.testing.assert_allclose(found[1:-1], errors, rtol=1e-9, atol=1e-9)
    assert not found[[0, -1]].any()
    kernels["backward_input"](*given_arrays, *receivers(nodes), found[1:-1], 0, SENDERS, True)
    np.testing.assert_allclose(found[1:-1], 2 * errors, rtol=1e-9, atol=1e-9)
    weights, biases = np.full_like(weight, np.nan), np.full_like(bias, np.nan)
    for start, stop in ((0, 2), (2, len(COUNTS))):
        begin, runs = nodes.offsets[start], (start, stop, stop - start)
        kernels["gradient_1"](*given_arrays, weights[begin : nodes.offsets[stop]], *runs, begin)
        kernels["gradient_2"](*given_arrays, biases[start:stop], *runs, start)
    np.testing.assert_allclose(weights, weight, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(biases, bias, rtol=1e-9, atol=1e-9)


def raises(incoming, weight, bias):  # type: ignore[no-untyped-def]
    if bias > 0:
        raise ValueError("too much")
    return bias


def test_what_a_gpu_cannot_do_is_not_written() -> None:
    source = written(raises)
    assert source is not None
    with pytest.raises(ir.Unsupported, match="Raise"):
        upward_text(source, SIGNATURE, WIDTH)


def test_a_place_outside_of_an_array_gives_no_number() -> None:
    function = function_of("def function(incoming, weight, bias):\n    return incoming[len(incoming) - 3]")
    source = written(function)
    assert source is not None
    nodes, state = Nodes(0), np.zeros((len(COUNTS), BATCH))
    plain(upward_text(source, SIGNATURE, WIDTH))["forward"](*table(nodes), nodes.weight, nodes.bias, state)
    for n, count in enumerate(COUNTS):
        expected = nodes.given(n, 0)[0][-3] if count >= 3 else math.nan
        np.testing.assert_equal(state[n, 0], expected)
