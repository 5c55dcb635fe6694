"""Nodes of a user's own: against plain Python, in pieces to the bit, and every way in which they can be
wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine import check_gradients
from partita.engine.kernels import Kernel, NodeCompileError, ThreadPool, build
from partita.engine.kernels.node import NodeKernel, slow_place
from partita.engine.kernels.nodes.loops import down_loops, up_loop
from partita.engine.kernels.nodes.vectors import Signature
from partita.layers import (
    Dense,
    Full,
    Layer,
    LocallyConnected2D,
    Node,
    OneToOne,
    Patch,
    per_edge,
)
from partita.partitioner.cluster.threads import ThreadShares
from tests.draws import examples
from tests.kernels.cases import Case, batches, case, cut_points, play, seeds
from tests.kernels.drawn_layers import wired
from tests.kernels.node_functions import (
    LEARNS,
    OwnConv2D,
    by_definition,
    leaky_sum,
    leaky_sum_errors,
    root,
    root_errors,
)
from tests.properties.kernels import assert_same_bits, assert_true

NO_TABLE = {"slope": 0.25}


@given(st.data(), wired(), batches, seeds)
@settings(max_examples=examples(10))
def test_equals_plain_python_whole_and_in_pieces(
    data: st.DataObject, drawn: tuple[Any, Any, Any], batch: int, seed: int
) -> None:
    wiring, shape, nodes = drawn
    given_case = case(
        Node(wiring, leaky_sum, leaky_sum_errors, learns=LEARNS, nodes=nodes), shape, batch=batch, seed=seed
    )
    whole = play(given_case)
    assert_true(given_case, whole)
    cuts = data.draw(cut_points(given_case.grid.n_rows))
    assert_same_bits(play(given_case, *cuts, extra=data.draw(st.integers(0, 2))), whole)
    assert_same_bits(play(given_case, threads=2), whole)


def test_a_node_without_parameters() -> None:
    given_case = case(Node(Patch(2, padding=1), root, root_errors, nodes=(3,)), (4, 4, 2), batch=3)
    assert_true(given_case, play(given_case))
    assert_true(given_case, play(given_case, 1, 3, extra=1))


@by_definition
@dataclass(frozen=True)
class Own(LocallyConnected2D):
    """A subclass may compute something else, so it is played by its definition."""


@by_definition
@dataclass(frozen=True)
class OwnDense(Dense):
    """The same."""


def test_a_subclass_is_played_by_its_definition() -> None:
    given_case = case(Own(2, 2, activation="tanh"), (4, 4, 2), batch=3)
    assert isinstance(given_case.kernel(), NodeKernel)
    assert_true(given_case, play(given_case, 2))


@pytest.mark.slow
def test_nodes_that_share_weights_add_to_one_gradient() -> None:
    given_case = case(OwnConv2D(3, 2, activation="tanh"), (4, 4, 2), batch=3)
    kernel = given_case.kernel()
    assert isinstance(kernel, NodeKernel)
    assert not kernel.gradient_by_rows
    assert_true(given_case, play(given_case))
    assert_true(given_case, play(given_case, 1, 2))
    assert_same_bits(play(given_case, threads=2), play(given_case))


@pytest.mark.slow
@pytest.mark.parametrize(
    "layer",
    [
        Node(Patch(2), leaky_sum, leaky_sum_errors, learns=LEARNS, nodes=(3,)),
        pytest.param(
            Node(Full(), leaky_sum, leaky_sum_errors, learns=LEARNS, nodes=(4, 2)), marks=pytest.mark.slow
        ),
        Node(OneToOne(), leaky_sum, leaky_sum_errors, learns=LEARNS),
        Node(Patch(2), root, root_errors),
    ],
    ids=["patches", "full", "vectors", "scalars"],
)
def test_in_bfloat16_sums_are_taken_in_float32(layer: Node) -> None:
    given_case = case(layer, (4, 4, 2), batch=5, dtype=np.float32).rounded
    whole = play(given_case)
    assert whole.state.dtype == np.uint16
    assert all(gradient.dtype == np.float32 for gradient in whole.gradients)
    assert_true(given_case, whole, rtol=0.02, atol=0.05)
    assert_true(given_case, play(given_case, 1, 2, extra=1), rtol=0.02, atol=0.05)
    assert_same_bits(play(given_case, threads=2), whole)


def test_blocks_of_a_sum_are_taken_when_all_have_arrived() -> None:
    given_case = case(OwnDense(3), (4,), batch=2)
    kernel = given_case.kernel()
    kernel.forward(block=(2, 4), first=True, last=False)()
    assert np.isnan(kernel.arrays.output).all()
    kernel.forward(block=(0, 2), first=False, last=True)()
    expected = given_case.reference.forward(given_case.inputs, given_case.parameters)
    np.testing.assert_allclose(kernel.arrays.output, expected)


def state_of(given_case: Case) -> Any:
    kernel = given_case.kernel()
    kernel.forward()()
    return kernel.arrays.output


def factorial(n):  # type: ignore[no-untyped-def]
    return 1.0 if n <= 1 else n * factorial(n - 1)


@pytest.mark.slow
def test_helpers_in_globals_and_closures_need_no_decorator() -> None:
    def scaled(factor: float) -> Callable[[Any], Any]:
        def by_factor(x):  # type: ignore[no-untyped-def]
            return factor * x

        def upward(incoming):  # type: ignore[no-untyped-def]
            return by_factor(incoming[0]) + factorial(len(incoming) + 3)

        return upward

    for factor in (2.0, 3.0):
        given_case = case(Node(OneToOne(), scaled(factor)), (2,), batch=1)
        np.testing.assert_allclose(state_of(given_case), factor * given_case.inputs[0] + 24)


def test_functions_that_came_in_a_message_are_compiled_with_their_helpers() -> None:
    def half(x):  # type: ignore[no-untyped-def]
        return 0.5 * x

    layer = Node(OneToOne(), lambda incoming: half(incoming[0]) + factorial(3))
    given_case = case(cloudpickle.loads(cloudpickle.dumps(layer)), (2,), batch=1)
    np.testing.assert_allclose(state_of(given_case), 0.5 * given_case.inputs[0] + 6)


def test_compiles_once_in_a_process() -> None:
    signature = Signature((("weight", "e"), ("bias", "n")), 1, "float64")
    assert up_loop(leaky_sum, None, signature) is up_loop(leaky_sum, None, signature)
    for downward in (leaky_sum_errors, None):
        assert down_loops(leaky_sum, downward, signature) is down_loops(leaky_sum, downward, signature)


def uses_a_table(incoming):  # type: ignore[no-untyped-def]
    return NO_TABLE["slope"] * incoming[0]


def calls_a_bad_helper(incoming):  # type: ignore[no-untyped-def]
    return bad_helper(incoming)


def bad_helper(values):  # type: ignore[no-untyped-def]
    return values.no_such_thing


def returns_an_array(incoming):  # type: ignore[no-untyped-def]
    return 2 * incoming


def errors_alone(incoming, state, error):  # type: ignore[no-untyped-def]
    return error * incoming


def a_number_for_errors(incoming, state, error):  # type: ignore[no-untyped-def]
    return (error,)


def total(incoming):  # type: ignore[no-untyped-def]
    return incoming.sum()


def waits(incoming):  # type: ignore[no-untyped-def]
    total = incoming[0]
    while total > 1:
        total = 0.5 * total
    return total


def halves(incoming):  # type: ignore[no-untyped-def]
    return below_one(incoming[0])


def below_one(x):  # type: ignore[no-untyped-def]
    while x > 1:
        x = 0.5 * x
    return x


def in_a_series(incoming):  # type: ignore[no-untyped-def]
    return series(incoming[0], 3 + abs(incoming[0]))


def series(x, n):  # type: ignore[no-untyped-def]
    total = 1.0
    for i in range(int(n)):
        total += x / (i + 1)
    return total


def elsewhere(incoming):  # type: ignore[no-untyped-def]
    return incoming[int(incoming[0] > 0)]


@pytest.mark.parametrize(
    ("upward", "downward", "form", "line", "reason"),
    [
        (uses_a_table, None, "plain Python", "NO_TABLE['slope']", "no array of numbers"),
        (calls_a_bad_helper, None, "plain Python", "bad_helper(incoming)", "bad_helper of an array"),
        (returns_an_array, None, "plain Python", "def returns_an_array", "a result that is not one number"),
        (total, errors_alone, "plain Python", "def errors_alone", "results of other shapes"),
        (waits, None, "torch", "while total > 1:", "a loop that may end earlier for some examples"),
        (halves, None, "torch", "while x > 1:", "a loop that may end earlier for some examples"),
        (elsewhere, None, "torch", "incoming[int(incoming[0] > 0)]", "depends on an example"),
    ],
)
def test_the_line_for_which_a_node_is_slow_is_named(
    upward: Any, downward: Any, form: str, line: str, reason: str
) -> None:
    given_case = case(Node(OneToOne(), upward, downward, name="mine"), (3,), batch=1)
    found = slow_place(given_case.grid, given_case.sources)
    assert found is not None
    assert found[0] == form
    assert found[1].filename == __file__
    assert reason in found[1].reason
    assert line in found[1].text
    with open(__file__, encoding="utf-8") as file:
        written = file.readlines()[found[1].line - 1]
    assert found[1].text.split("[")[0].split("(")[0] in written


def test_a_node_in_loops_has_no_slow_line() -> None:
    for downward in (leaky_sum_errors, None):
        given_case = case(Node(OneToOne(), leaky_sum, downward, LEARNS), (3,), batch=1)
        assert slow_place(given_case.grid, given_case.sources) is None
    given_case = case(Node(OneToOne(), in_a_series), (3,), batch=1)
    assert slow_place(given_case.grid, given_case.sources, trained=False) is None


def kernel_of(layer: Layer, pool: ThreadPool | None = None) -> Kernel:
    given_case = case(layer, (4,), batch=2)
    context = given_case.context()
    kernel = build(context, given_case.arrays(context), pool)
    kernel.arrays.output[...] = 1
    return kernel


@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_users_function_raises_comes_out_with_the_layers_name(threads: int) -> None:
    pool = ThreadPool(threads, shares=ThreadShares(loop=0))
    kernel = kernel_of(Node(OneToOne(), root, root_errors, name="mine"), pool)
    kernel.arrays.inputs[0][3, 1] = 1e7
    with pytest.raises(ZeroDivisionError, match="nothing to divide by") as caught:
        kernel.forward()()
    assert "in the upward function of Node root 'mine', root (File" in caught.value.__notes__[0]
    pool.close()


def test_errors_of_the_wrong_length_are_refused() -> None:
    kernel = kernel_of(Node(OneToOne(), root, root_errors, name="mine"))
    kernel.forward()()
    kernel.arrays.own_grad[2, 0] = 1e7
    with pytest.raises(ValueError, match="as long as incoming") as caught:
        kernel.backward_input(0, ((0, 4),), accumulate=False)()
    assert "downward function of Node root 'mine'" in caught.value.__notes__[0]


def beyond(incoming):  # type: ignore[no-untyped-def]
    return incoming[len(incoming)]


def beyond_as_it_stands(incoming):  # type: ignore[no-untyped-def]
    while len(incoming) < 0:
        pass
    return incoming[len(incoming)]


@pytest.mark.parametrize("upward", [beyond, beyond_as_it_stands])
def test_reading_outside_an_array_raises_instead_of_reading_elsewhere(upward: Any) -> None:
    kernel = kernel_of(Node(OneToOne(), upward, name="mine"))
    with pytest.raises(IndexError) as caught:
        kernel.forward()()
    assert f"Node {upward.__name__} 'mine'" in caught.value.__notes__[0]


def test_a_node_without_a_derivative_names_the_line() -> None:
    kernel = kernel_of(Node(OneToOne(), root, name="mine"))
    with pytest.raises(
        NodeCompileError, match=r"(?s)Node root 'mine' cannot be trained.*@root\.downward"
    ) as caught:
        kernel.backward_input(0, ((0, 4),), accumulate=False)
    assert "raise ZeroDivisionError" in str(caught.value)
    with pytest.raises(NodeCompileError, match="cannot be trained"):
        kernel.backward_parameters(())


def changes_its_weight(incoming, weight, state, error):  # type: ignore[no-untyped-def]
    """Scales the network's own weight, where it meant a copy."""
    gradient = incoming * error
    weight *= error
    return weight, gradient


def test_a_function_that_changes_a_parameter_is_refused() -> None:
    def weighs(incoming, weight):  # type: ignore[no-untyped-def]
        return (weight * incoming).sum()

    layer = Node(Full(), weighs, changes_its_weight, (("weight", per_edge()),), (2,), name="mine")
    kernel = case(layer, (3,), batch=1).kernel()
    kernel.forward()()
    with pytest.raises(ValueError, match="read-only"):
        kernel.backward_input(0, ((0, 3),), accumulate=False)()
    with pytest.raises(ValueError, match="read-only"):
        check_gradients(layer, (3,))
