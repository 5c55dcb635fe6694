"""Functions turned inside out, examples innermost: random ones against plain Python, and what is understood."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels import Array
from partita.engine.kernels.node_arithmetic import NotUnderstood
from partita.engine.kernels.node_source import written
from partita.engine.kernels.node_vectors import Signature, downward_text, upward_text
from tests.kernels.cases import seeds
from tests.kernels.drawn_nodes import as_plain_python, downward, function_of, upward

SIGNATURE = Signature((("weight", "e"), ("bias", "n")), 1, "float64")
COUNTS = (3, 1, 5, 3)
SENDERS, BATCH = 6, 5


class Nodes:
    """Four nodes with edges from six senders, padding among them, and five examples."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.offsets = np.cumsum((0, *COUNTS))
        self.senders = np.concatenate([draw.permutation(np.arange(-1, SENDERS))[:count] for count in COUNTS])
        self.x, self.state, self.error = (
            draw.normal(size=(n, BATCH)) for n in (SENDERS, len(COUNTS), len(COUNTS))
        )
        self.weight, self.bias = draw.normal(size=sum(COUNTS)), draw.normal(size=len(COUNTS))

    @property
    def table(self) -> tuple[Any, ...]:
        return self.x, np.zeros(BATCH), self.senders, self.offsets[:-1], self.offsets, max(COUNTS)

    def given(self, n: int, e: int) -> tuple[Any, ...]:
        edges = slice(self.offsets[n], self.offsets[n + 1])
        heard = [0.0 if s < 0 else self.x[s, e] for s in self.senders[edges]]
        return np.array(heard), self.weight[edges].copy(), float(self.bias[n])

    def states(self, function: FunctionType) -> Array:
        pairs = np.ndindex(len(COUNTS), BATCH)
        return np.array([function(*self.given(n, e)) for n, e in pairs], float).reshape(-1, BATCH)

    def errors_and_gradients(self, function: FunctionType) -> tuple[Array, Array, Array]:
        errors, weight, bias = np.zeros_like(self.x), np.zeros_like(self.weight), np.zeros_like(self.bias)
        for n, e in np.ndindex(len(COUNTS), BATCH):
            edges = slice(self.offsets[n], self.offsets[n + 1])
            found = function(*self.given(n, e), float(self.state[n, e]), float(self.error[n, e]))
            for sender, value in zip(self.senders[edges], found[0], strict=True):
                errors[sender, e] += value if sender >= 0 else 0
            weight[edges] += found[1]
            bias[n] += found[2]
        return errors, weight, bias


@given(upward(), seeds, st.sampled_from([2, 8]))
@settings(max_examples=200)
def test_any_upward_equals_plain_python(text: str, seed: int, tile: int) -> None:
    function, nodes = function_of(text), Nodes(seed)
    source = written(function)
    assert source is not None
    loops = as_plain_python(upward_text(source, SIGNATURE), tile=tile)
    state = np.full((len(COUNTS), BATCH), np.nan)
    loops["states"](*nodes.table, nodes.weight, nodes.bias, state, 0, len(COUNTS))
    np.testing.assert_allclose(state, nodes.states(function), rtol=1e-9, atol=1e-9)


@given(downward(), seeds, st.sampled_from([2, 8]))
@settings(max_examples=200)
def test_any_downward_equals_plain_python(text: str, seed: int, tile: int) -> None:
    function, nodes = function_of(text), Nodes(seed)
    source = written(function)
    assert source is not None
    loops = as_plain_python(downward_text(source, SIGNATURE), tile=tile)
    errors, weight, bias = nodes.errors_and_gradients(function)
    found, given_arrays = np.zeros((SENDERS, BATCH)), (nodes.weight, nodes.bias, nodes.state, nodes.error)
    starts, stops = np.full(len(COUNTS), -1), np.full(len(COUNTS), SENDERS)
    for low, high in ((0, 4), (4, SENDERS)):
        loops["errors"](*nodes.table, starts, stops, *given_arrays, found[low:high], low, high)
    np.testing.assert_allclose(found, errors, rtol=1e-9, atol=1e-9)
    weights, biases = np.full_like(weight, np.nan), np.full_like(bias, np.nan)
    for start, stop in ((0, 2), (2, len(COUNTS))):
        begin = nodes.offsets[start]
        sums = weights[begin : nodes.offsets[stop]], biases[start:stop]
        loops["gradients"](*nodes.table, *given_arrays, *sums, start, stop, start)
    np.testing.assert_allclose(weights, weight, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(biases, bias, rtol=1e-9, atol=1e-9)
