"""A function means the same when it is written as text, for any names in it.

Names and numbers are drawn so that they collide with one another and with those of generated text.
"""

from __future__ import annotations

import itertools
import linecache
import math
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels.nodes import ir, vectors
from partita.engine.kernels.nodes.loops import read_upward
from partita.engine.kernels.nodes.torch_kernel import TorchForm
from partita.engine.kernels.nodes.vectors import Signature
from partita.layers import Full, Node, per_edge, per_node
from tests.draws import examples
from tests.kernels.cases import case, play
from tests.kernels.drawn_nodes import as_plain_python
from tests.properties.kernels import assert_true

NAMES = (
    *("slope", "leaky", "leaky_slope", "upward", "upward_leaky", "upward_slope", "upward_leaky_slope"),
    *("own_0", "own_1", "own_2", "own_3", "h_0", "h_0_0", "h_1", "C0", "R", "R1", "v_x", "x", "e", "n", "m"),
    *("state", "error", "n_state", "own_state", "first", "edge", "begin", "sums", "at", "s_0", "u1", "y1"),
    *("np", "math", "max", "float", "int", "compiled", "upcast", "fan_in", "total"),
)
NUMBERS = (True, False, 1, 1.0, 0, 0.0, -0.0, 2, -2, -3, 0.5, math.inf, -math.inf, math.nan)


@dataclass(frozen=True)
class Program:
    """A function that calls three functions of another module, two of them of the same names as its own."""

    theirs: str
    ours: str
    name: str

    @property
    def function(self) -> FunctionType:
        there = run(self.theirs, "theirs", {})
        function: FunctionType = run(self.ours, "ours", {"theirs": there})[self.name]
        return function


def run(text: str, name: str, names: dict[str, Any]) -> dict[str, Any]:
    """Runs a module's text, which Python finds again."""
    filename = f"<{name} {hash(text)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    names = {"__name__": name, **names}
    exec(compile(text, filename, "exec"), names)
    return names


@st.composite
def programs(draw: st.DrawFn, *, ends: bool = True) -> Program:
    """Programs with a `while` loop, which only torch can play; or with a `for` loop."""

    def names(n: int) -> list[str]:
        return draw(st.lists(st.sampled_from(NAMES), min_size=n, max_size=n, unique=True))

    def number() -> str:
        value = draw(st.sampled_from(NUMBERS))
        return repr(value) if math.isfinite(value) else f"float('{value}')"

    one, two, low, x, y = names(5)
    theirs = f"""
{low} = {number()}
def {one}({x}):
    {y} = {low} * {x}
    return {y} + {two}({x}, {low})
def {two}({y}, {x}):
    return {y} - {x} * {low}
"""
    same, high, other, incoming, total, k, name = names(7)
    head = f"while {k} < len({incoming}):" if ends else f"for {k} in range(len({incoming})):"
    step = f"{k} += 1" if ends else "pass"
    ours = f"""

{high}, {other} = {number()}, {number()}
{same} = theirs[{one!r}]
def {one if one not in (same, high, other, name) else "another"}({x}):
    return {x} * {other}
def {name}({incoming}):
    {total} = {other} * {incoming}[0]
    {k} = 0
    {head}
        {total} += {same}({incoming}[{k}]) * {high}
        {step}
    return {total}
"""
    if not ends:
        ours = ours.replace(f"    {k} = 0\n", "")
    return Program(theirs, ours, name)


def answer(function: FunctionType, incoming: Any) -> float:
    with np.errstate(all="ignore"):
        return float(function(incoming))


INCOMING = (np.array([-1.0, 0.5, 2.0]), np.array([0.0, -0.25]))


@given(programs())
@settings(max_examples=examples(60))
def test_in_torch_a_function_means_the_same(program: Program) -> None:
    form = TorchForm((), read_upward(program.function, Signature((), 1, "float64")), None)
    for incoming in INCOMING:
        found = form.upward(torch.tensor(incoming)[:, None, None], [], 1)
        np.testing.assert_allclose(float(found), answer(program.function, incoming), rtol=1e-12)


@given(programs(ends=False))
@settings(max_examples=examples(60))
def test_loops_over_examples_mean_the_same(program: Program) -> None:
    signature = Signature((), 1, "float64")
    loops = as_plain_python(vectors.upward_text(read_upward(program.function, signature), signature), tile=8)
    for incoming in INCOMING:
        count, one, x = len(incoming), np.zeros(1, int), incoming[:, None]
        table = np.arange(count), one, np.array([count]), one
        states = np.zeros((1, 1))
        with np.errstate(all="ignore"):
            loops["forward"](x, np.zeros(1), *table, count, states, 0, 1)
        np.testing.assert_allclose(states.ravel(), answer(program.function, incoming), rtol=1e-12)


def test_parameters_may_be_called_as_what_every_node_is_given() -> None:
    def upward(incoming, state, error):  # type: ignore[no-untyped-def]
        return state * incoming[0] + error

    def downward(incoming, state, error, n_state, n_error):  # type: ignore[no-untyped-def]
        errors = n_error * state + 0 * incoming
        return errors, n_error * incoming[0] + n_state - n_state, n_error * 1.0

    learns = (("state", per_node(0.5)), ("error", per_node(0.25)))
    given_case = case(Node(Full(), upward, downward, learns, (3,)), (1,), batch=2)
    assert_true(given_case, play(given_case))


slope, leaky_slope = 0.1, 3.0


def leaky(total):  # type: ignore[no-untyped-def]
    return slope * total if total < 0 else total


def scaled(incoming):  # type: ignore[no-untyped-def]
    k, total = 0, 0.0
    while k < len(incoming):
        total += incoming[k]
        k += 1
    return leaky(total) * leaky_slope


def test_a_helpers_number_is_not_taken_for_the_nodes() -> None:
    given_case = case(Node(Full(), scaled, nodes=(1,)), (1,), batch=1)
    kernel = given_case.kernel()
    kernel.arrays.inputs[0][...] = -1
    kernel.forward()()
    np.testing.assert_allclose(kernel.arrays.output, -0.3)


factor = 2.0


def multiplied(incoming):  # type: ignore[no-untyped-def]
    return doubled(incoming[0])


def doubled(x):  # type: ignore[no-untyped-def]
    return factor * x


def test_a_global_counts_as_it_is_when_the_node_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (2.0, 3.0, True, 2.0):
        monkeypatch.setitem(globals(), "factor", value)
        kernel = case(Node(Full(), multiplied, nodes=(1,)), (1,), batch=1).kernel()
        kernel.forward()()
        np.testing.assert_allclose(kernel.arrays.output, value * kernel.arrays.inputs[0])


def reassigns(incoming, state, error):  # type: ignore[no-untyped-def]
    errors = np.zeros(len(incoming))
    for k in range(len(incoming)):
        a = incoming[k]
        a = 2 * a
        errors[k] = a * error
    return (errors,)


def keeps_the_last(incoming, state, error):  # type: ignore[no-untyped-def]
    errors = np.zeros(len(incoming))
    b = 0.0
    for k in range(len(incoming)):
        a = b
        b = 2 * incoming[k]
        errors[k] = a * error
    return (errors,)


def moves_along(incoming, state, error):  # type: ignore[no-untyped-def]
    errors, other = np.zeros(len(incoming)), incoming.copy()
    for k in range(len(incoming)):
        a = other[k]
        other[k] = 7.0
        errors[k] = a * error + (-2) ** 6
    return (errors,)


def first(incoming):  # type: ignore[no-untyped-def]
    return incoming[0]


@pytest.mark.parametrize("downward", [reassigns, keeps_the_last, moves_along])
def test_a_value_is_that_of_the_moment_when_it_was_assigned(downward: Any) -> None:
    given_case = case(Node(Full(), first, downward, nodes=(2,)), (3,), batch=2)
    assert_true(given_case, play(given_case))


def sums_and_keeps(incoming, weight):  # type: ignore[no-untyped-def]
    last, total = 0.0, 0.0
    for k in range(len(incoming)):
        last = incoming[k]
        total += weight[k] * last
    return total + last


@pytest.mark.slow
def test_a_weighted_sum_forgets_nothing_that_its_loop_assigns() -> None:
    layer = Node(Full(), sums_and_keeps, learns=(("weight", per_edge()),), nodes=(2,))
    given_case = case(layer, (3,), batch=2)
    kernel = given_case.kernel()
    kernel.forward()()
    expected = given_case.reference.forward(given_case.inputs, given_case.parameters)
    np.testing.assert_allclose(kernel.arrays.output, expected)


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations((True, 1, 1.0, 0.0, -0.0, False), 2)])
def test_numbers_that_python_takes_for_equal_are_several_constants(one: Any, other: Any) -> None:
    assert ir.Constant(one) != ir.Constant(other)
    assert (
        len(
            {
                ir.Constant(one),
                ir.Constant(other),
                ir.Constant(one),
                ir.Constant(math.nan),
                ir.Constant(math.nan),
            }
        )
        == 3
    )
