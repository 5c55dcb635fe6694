"""Functions turned inside out, examples innermost: random ones against plain Python; what is understood."""

from __future__ import annotations

import ast
import linecache
import math
import re
from types import FunctionType
from typing import Any, cast

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels.node import NodeKernel
from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.errors import place_of
from partita.engine.kernels.nodes.loop_kernel import NodeLoopKernel
from partita.engine.kernels.nodes.loops import read_downward, read_upward
from partita.engine.kernels.nodes.source import carry_source, written
from partita.engine.kernels.nodes.vectors import Signature, downward_text, upward_text
from partita.engine.runtime.task import pack_task
from partita.layers import Node, Patch, per_edge, per_node
from tests.draws import examples
from tests.kernels.cases import case, play, seeds
from tests.kernels.drawn_nodes import as_plain_python, downward, function_of, upward
from tests.kernels.four_nodes import BATCH, COUNTS, SENDERS, SIGNATURE, Nodes
from tests.properties.kernels import assert_same_bits, assert_true


@given(seeds.map(upward), seeds, st.sampled_from([2, 8]))
@settings(max_examples=examples(40))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_any_upward_equals_plain_python(text: str, seed: int, tile: int) -> None:
    function, nodes = function_of(text), Nodes(seed)
    generated = upward_text(read_upward(function, SIGNATURE), SIGNATURE)
    assert (
        upward_text(read_upward(function, SIGNATURE), SIGNATURE) == generated
    )  # so that it is compiled once
    loops = as_plain_python(generated, tile=tile)
    state = np.full((len(COUNTS), BATCH), np.nan)
    loops["forward"](*nodes.table, nodes.weight, nodes.bias, state, 0, len(COUNTS))
    np.testing.assert_allclose(state, nodes.states(function), rtol=1e-9, atol=1e-9)


@given(seeds.map(downward), seeds, st.sampled_from([2, 8]))
@settings(max_examples=examples(40))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_any_downward_equals_plain_python(text: str, seed: int, tile: int) -> None:
    function, nodes = function_of(text), Nodes(seed)
    read = read_downward(function, function, SIGNATURE)
    generated = downward_text(read, SIGNATURE)
    assert downward_text(read, SIGNATURE) == generated  # what was read does not change
    loops = as_plain_python(generated, tile=tile)
    errors, weight, bias = nodes.backward(function)
    found, given_arrays = np.zeros((SENDERS, BATCH)), (nodes.weight, nodes.bias, nodes.state, nodes.error)
    starts, stops = np.full(len(COUNTS), -1), np.full(len(COUNTS), SENDERS)
    for low, high in ((0, 4), (4, SENDERS)):
        loops["backward_input"](*nodes.table, starts, stops, *given_arrays, found[low:high], low, high)
    np.testing.assert_allclose(found, errors, rtol=1e-9, atol=1e-9)
    weights, biases = np.zeros_like(weight), np.zeros_like(bias)
    for start, stop in ((0, 2), (2, len(COUNTS))):
        begin = nodes.offsets[start]
        sums = weights[begin : nodes.offsets[stop]], biases[start:stop]
        loops["backward_parameters"](*nodes.table, *given_arrays, *sums, start, stop, begin, start)
    np.testing.assert_allclose(weights, weight, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(biases, bias, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [11, pytest.param(12, marks=pytest.mark.slow), pytest.param(13, marks=pytest.mark.slow)]
)
def test_compiled_it_is_the_same_in_pieces_and_on_threads(seed: int) -> None:
    functions = function_of(upward(seed)), function_of(downward(seed))
    learns = (("weight", per_edge()), ("bias", per_node()))
    given_case = case(Node(Patch(2, padding=1), *functions, learns=learns, nodes=(2,)), (4, 3, 2), batch=5)
    kernel = given_case.kernel()
    assert isinstance(kernel, NodeKernel)
    assert isinstance(kernel.played, NodeLoopKernel)
    whole = play(given_case)
    assert_true(given_case, whole)
    assert_same_bits(play(given_case, 1, 3, extra=1), whole)
    assert_same_bits(play(given_case, threads=2), whole)


@pytest.mark.parametrize("batch", [1, 127, 128, 300])
def test_any_number_of_examples(batch: int) -> None:
    given_case = case(
        Node(Patch(2), energy, energy_errors, learns=(("gain", per_node()),)), (3, 3, 2), batch=batch
    )
    assert_true(given_case, play(given_case))


def energy(incoming: Any, gain: Any) -> Any:
    total = 0
    for value in incoming:
        total += value * value
    return gain * math.sqrt(total)


def energy_errors(incoming: Any, gain: Any, state: Any, error: Any) -> Any:
    root = state / gain
    return gain * error * incoming / root, error * root


UNDERSTOOD_NOT = """
def waits(incoming):
    total = incoming[0]
    while total > 1:
        total -= 1
    return total

def part(incoming):
    return incoming[1:].sum()

def elsewhere(incoming):
    return incoming[int(incoming[0])]

def counted(incoming):
    total = 0
    for k in range(int(incoming[0])):
        total += k
    return total

def inner(incoming):
    def twice(x):
        return 2 * x
    return twice(incoming[0])

def listed(incoming):
    return sum([x * x for x in incoming])

def table(incoming):
    return TABLE[0] * incoming[0]

def of_an_array(incoming):
    return norm(incoming)

def norm(values):
    return values[0]

def recursive(incoming):
    return factorial(incoming[0])

def factorial(x):
    return 1 if x < 1 else x * factorial(x - 1)

def perhaps_outside(incoming):
    return incoming[5] if incoming[0] > 0 else 0

def leaves_from_a_loop(incoming):
    for x in incoming:
        if x > 0:
            return x
    return 0

def may_not_return(incoming):
    if incoming[0] > 0:
        return incoming[0]

def changes_what_it_hears(incoming):
    incoming[0] = 1
    return incoming[0]

def two_names(incoming):
    one = 0 * incoming
    other = one
    other[0] = 1
    return one[0]

def raises(incoming):
    if incoming[0] > 0:
        raise ValueError("positive")
    return incoming[0]

def several(incoming):
    return incoming[0], incoming[0]

def an_array(incoming):
    return 2 * incoming

TABLE = [1.0, 2.0]
"""


@pytest.mark.parametrize("name", re.findall(r"^def (\w+)\(incoming\)", UNDERSTOOD_NOT, re.MULTILINE))
def test_what_is_not_understood_is_left_as_it_stands(name: str) -> None:
    signature = Signature((), 1, "float32")
    with pytest.raises(ir.Unsupported):
        upward_text(read_upward(function_of(UNDERSTOOD_NOT, name), signature), signature)


def test_results_of_other_shapes_are_left_to_plain_python_to_refuse() -> None:
    for returned in ("error * incoming", "(error,)", "error * incoming, 2.0", "error * incoming, 0, 0"):
        text = f"def function(incoming, gain, state, error):\n    return {returned}\n"
        function = function_of(text)
        with pytest.raises(ir.Unsupported, match="results of other shapes"):
            read_downward(function, function, Signature((("gain", "e"),), 1, "float32"))


def test_numbers_are_of_one_type() -> None:
    """A constant of double precision would make vectors of half the width."""
    text = "def function(incoming):\n    return 0.1 * incoming[0] + 2 * len(incoming) * incoming[0]\n"
    signature = Signature((), 1, "bfloat16")
    loops = upward_text(read_upward(function_of(text), signature), signature).partition("def forward")[2]
    assert "0.1" not in loops
    assert "R(v" in loops


def test_the_source_of_a_changed_file_is_not_used() -> None:
    function = function_of("def function(incoming):\n    return 2 * incoming[0]\n")
    assert written(function) is not None
    filename = function.__code__.co_filename
    size, _, lines, _ = linecache.cache[filename]  # type: ignore[misc]
    linecache.cache[filename] = size, None, [line.replace("2 *", "3 *") for line in lines], filename
    assert written(function) is None


def test_lambdas_on_one_line_are_told_apart() -> None:
    one, other = (lambda incoming: incoming[0]), (lambda incoming: -incoming[0])
    assert [ast.unparse(source.tree.body[0]) for source in map(written, (one, other)) if source] == [
        "return incoming[0]",
        "return -incoming[0]",
    ]


def test_a_function_carries_its_source_to_where_its_file_is_not() -> None:
    function = function_of("def function(incoming):\n    return math.tanh(smooth(incoming[0], 1))\n")
    packed = pack_task(cast(Any, {"upward": function}))
    linecache.cache.pop(function.__code__.co_filename)
    arrived = cloudpickle.loads(packed)["upward"]
    signature = Signature((), 1, "float64")
    assert "R(0.25)" in upward_text(read_upward(arrived, signature), signature)
    vars(arrived).clear()
    assert written(arrived) is None


def test_carried_source_has_the_lines_of_its_file() -> None:
    """Decorators and comments before a line are counted, as in the file."""
    above = "def as_is(function):\n    return function\n\n\n@as_is\n"
    function = function_of(
        above + "def function(incoming):\n    # table\n\n    return {1: 2.0}[1] * incoming[0]\n"
    )
    before = place_of(_refused(function), function)
    carry_source(function)
    assert place_of(_refused(function), function) == before
    assert "{1: 2.0}" in linecache.getline(before.filename, before.line)


def test_a_table_of_constants_is_named() -> None:
    text = "TABLE = [0.5, 2.0]\ndef function(incoming):\n    return TABLE[0] * incoming[0]\n"
    assert "an index into a table of constants: choose its numbers by `if`" in str(
        _refused(function_of(text))
    )


def _refused(function: FunctionType) -> ir.Unsupported:
    with pytest.raises(ir.Unsupported) as refused:
        read_upward(function, Signature((), 1, "float64"))
    return refused.value


def test_the_carried_source_of_another_function_is_not_used() -> None:
    function = function_of("def function(incoming):\n    return incoming[0]\n")
    carry_source(function)
    (name,) = vars(function)
    linecache.cache.pop(function.__code__.co_filename)
    assert written(function) is not None
    vars(function)[name] = "def function(incoming):\n    return -incoming[0]\n"
    assert written(function) is None
