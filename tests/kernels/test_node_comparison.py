"""Compiled nodes are compared with plain Python before they are used: what is refused, and what is not."""

from __future__ import annotations

import contextlib
import math
import random
import threading
from typing import Any, cast

import numpy as np
import pytest
from numba.core import event

from partita.engine.kernels import NodeCompileError
from partita.engine.kernels.nodes import comparison, loops, vectors
from partita.engine.kernels.nodes.vectors import Signature
from partita.layers import Full, Node, OneToOne, per_edge
from tests.kernels.cases import case
from tests.kernels.compilations import Compilations

ALONE = Signature((), 1, "float64")


def beyond_64_bits(incoming):  # type: ignore[no-untyped-def]
    n = 1
    for _ in range(50):
        n *= 3
    return n * incoming[0]


def test_a_difference_names_the_node_the_inputs_and_both_results() -> None:
    upward = beyond_64_bits
    with pytest.raises(NodeCompileError) as caught:
        case(Node(OneToOne(), upward, name="mine"), (3,), batch=1, dtype=np.float32).kernel()
    text = str(caught.value)
    assert text.startswith(
        f"Node {upward.__name__} 'mine': its upward function {upward.__name__} gives other"
    )
    assert 'test_node_comparison.py", line ' in text
    assert "incoming = " in text
    plain = float(text.partition("plain Python: ")[2].split()[0])
    compiled = float(text.partition("compiled: ")[2].split()[0])
    assert abs(plain) > 1e20 > abs(compiled)


def weighs(incoming, weight):  # type: ignore[no-untyped-def]
    return np.tanh(weight @ incoming)


def weighs_errors(incoming, weight, state, error):  # type: ignore[no-untyped-def]
    delta = error * (1 - state * state)
    return delta * weight, delta * incoming


def squares(incoming, weight):  # type: ignore[no-untyped-def]
    return (weight * incoming * incoming).sum()


def squares_errors(incoming, weight, state, error):  # type: ignore[no-untyped-def]
    return 2 * error * weight * incoming, error * incoming * incoming


@pytest.mark.parametrize(
    ("functions", "planted", "role"),
    [
        ((weighs, weighs_errors), "finish_text", "upward"),
        ((weighs, weighs_errors), "backward_sum_text", "downward"),
        ((squares, squares_errors), "upward_text", "upward"),
        ((squares, squares_errors), "downward_text", "downward"),
        ((squares, None), "downward_text", "derived downward"),
    ],
)
def test_wrong_text_is_found_in_every_form(
    functions: Any, planted: str, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = getattr(vectors, planted)

    def wrong(*given: Any) -> str:
        text: str = write(*given)
        for right, other in ((" * ", " + "), ("fma(", "max("), ("hyperbolic_tangent(", "exponential(")):
            text = text.replace(right, other)
        return text

    monkeypatch.setattr(vectors, planted, wrong)
    for kept in (loops.sum_loops, loops.up_loop, loops.down_loops, comparison.compared):
        kept.cache_clear()  # type: ignore[attr-defined]
    layer = Node(Full(), *functions, (("weight", per_edge()),), (2,), name="mine")
    with pytest.raises(NodeCompileError, match=f"'mine': its {role} function"):
        case(layer, (3,), batch=2).kernel()


def raises_on_some(incoming):  # type: ignore[no-untyped-def]
    if incoming[0] < 0:
        raise ValueError("no negative numbers")
    return math.sqrt(incoming[0])


def never_ends_on_some(incoming):  # type: ignore[no-untyped-def]
    total = incoming[0]
    while total < 0:
        total -= 1
    return total


def never_ends_in_python(incoming):  # type: ignore[no-untyped-def]
    while incoming[0] == incoming[0]:
        with contextlib.suppress(Exception):
            incoming[0] = incoming[0]
    return incoming[0]


def rounds(incoming):  # type: ignore[no-untyped-def]
    return 1.0 if (incoming[0] * 0.1) * 10 == incoming[0] else 0.0


def is_chaotic(incoming):  # type: ignore[no-untyped-def]
    x = 1 / (1 + incoming[0] * incoming[0])
    for _ in range(200):
        x = 3.99 * x * (1 - x)
    return x


def cancels(incoming):  # type: ignore[no-untyped-def]
    return (1e6 + incoming[0]) - 1e6


def overflows(incoming):  # type: ignore[no-untyped-def]
    return math.exp(90 + incoming[0])


def is_random(incoming):  # type: ignore[no-untyped-def]
    return incoming[0] + random.random()


@pytest.mark.slow
@pytest.mark.parametrize("upward", [raises_on_some, rounds, is_chaotic, cancels, overflows, is_random])
def test_rounding_and_chance_are_no_difference(upward: Any) -> None:
    case(Node(OneToOne(), upward), (3,), batch=1, dtype=np.float32).kernel()


def test_inputs_on_which_plain_python_never_ends_are_left_out() -> None:
    given_case = case(Node(OneToOne(), never_ends_on_some), (3,), batch=1)
    given_case.inputs[0][...] = np.abs(given_case.inputs[0])
    assert np.isfinite(play_up(given_case)).all()
    assert comparison._limited_call(lambda: never_ends_in_python(np.ones(1))) is None


def play_up(given_case: Any) -> Any:
    kernel = given_case.kernel()
    kernel.forward()()
    return kernel.arrays.output


class Endless:
    """A kernel whose forward pass does not end."""

    def __init__(self, let_go: threading.Event) -> None:
        self._let_go = let_go

    def forward(self) -> Any:
        return self._let_go.wait


def test_a_form_that_does_not_end_where_python_does_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "_WAIT_S", 0.01)
    let_go = threading.Event()
    found = comparison.compared(cancels, None, ALONE, lambda *given: cast(Any, Endless(let_go)), False)
    let_go.set()
    assert found is not None
    assert "no result after" in found.compiled


@pytest.mark.slow
def test_nothing_is_compiled_for_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison has a time limit, which compiling must not use up."""
    counts: list[int] = []
    timed = comparison._timed

    def counted(run: Any) -> Any:
        with event.install_listener("numba:compile", Compilations()) as listener:
            found = timed(run)
        assert isinstance(listener, Compilations)
        counts.append(listener.count)
        return found

    monkeypatch.setattr(comparison, "_timed", counted)
    for kept in (loops.sum_loops, loops.up_loop, loops.down_loops, comparison.compared):
        kept.cache_clear()  # type: ignore[attr-defined]
    learns = (("weight", per_edge()),)
    for functions in ((weighs, weighs_errors), (squares, squares_errors)):
        case(Node(Full(), *functions, learns, (2,)), (3,), batch=2, dtype=np.float32).kernel()
    case(Node(OneToOne(), raises_on_some), (3,), batch=2, dtype=np.float32).kernel()
    assert counts
    assert set(counts) == {0}
