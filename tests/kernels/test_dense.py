"""Fully connected layers: against the node definition, in pieces, in blocks, in rows, and in bfloat16."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.kernels import Array, Arrays, Call, Kernel, KernelContext, ThreadPool, build
from partita.engine.numerics import downcast_array, master, storage, upcast_array
from partita.layers import Dense
from tests.draws import examples
from tests.kernels.cases import Case, activations, assert_true, batches, case, cut_points, play, seeds

shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)
PRECISIONS = ["float32", "float64", "bfloat16"]
TOLERANCE = {"float32": 1e-4, "float64": 1e-10, "bfloat16": 0.06}


def stored(numbers: Array, precision: str) -> Array:
    return downcast_array(numbers.astype(master(precision)), np.zeros(numbers.shape, storage(precision)))


@dataclass(frozen=True)
class Played:
    """A dense kernel of a whole layer, its arrays, and a case of the same numbers in float64."""

    given: Case
    arrays: Arrays
    kernel: Kernel
    precision: str

    @property
    def state(self) -> Array:
        return upcast_array(self.arrays.output)

    def gradients(self, n_rows: int) -> tuple[Array, ...]:
        """Arrays for the gradients of so many rows."""
        shapes = (parameter.shape[1:] for parameter in self.arrays.parameters)
        return tuple(np.zeros((n_rows, *shape), self.kernel.gradient_dtype) for shape in shapes)


def played(layer: Dense, *shape: int, batch: int, precision: str, threads: int = 1) -> Played:
    """The kernel before its first step; what it reads are normal numbers that the precision can hold."""
    drawn = case(layer, shape, batch=batch)
    kept = [stored(numbers, precision) for numbers in (*drawn.inputs, *drawn.parameters, drawn.error)]
    exact = [upcast_array(numbers).astype(np.float64) for numbers in kept]
    given_case = Case(drawn.grid, drawn.sources, (exact[0],), tuple(exact[1:-1]), exact[-1])
    arrays = Arrays(
        inputs=(kept[0],),
        output=stored(np.full(drawn.error.shape, np.nan), precision),
        grad_output=kept[-1],
        grad_inputs=(stored(np.full(drawn.inputs[0].shape, 7.0), precision),),
        parameters=tuple(kept[1:-1]),
    )
    own, window = (0, drawn.grid.n_rows), (0, shape[0])
    context = KernelContext(drawn.grid, own, drawn.sources, (window,), (window,), batch, precision, threads)
    return Played(
        given_case, arrays, build(context, arrays, ThreadPool(threads, thread_operations=0)), precision
    )


def assert_near(found: Array, expected: Array, precision: str) -> None:
    allowed = TOLERANCE[precision]
    np.testing.assert_allclose(upcast_array(found), expected, rtol=allowed, atol=allowed)


@given(st.data(), st.integers(1, 7), shapes, activations, st.booleans(), batches, seeds)
@settings(max_examples=examples(16))
def test_equals_its_node_definition_whole_and_in_pieces(
    data: st.DataObject,
    units: int,
    shape: tuple[int, ...],
    activation: str,
    use_bias: bool,
    batch: int,
    seed: int,
) -> None:
    given_case = case(Dense(units, activation=activation, use_bias=use_bias), shape, batch=batch, seed=seed)
    cuts = data.draw(cut_points(given_case.grid.n_rows)) if data.draw(st.booleans()) else ()
    assert_true(given_case, play(given_case, *cuts))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("activation", ["tanh", "linear"])
@pytest.mark.parametrize("blocks", [[(0, 6)], [(2, 4), (0, 2), (4, 6)], [(3, 6), (0, 3)]])
def test_a_sum_in_blocks_equals_the_whole(
    blocks: list[tuple[int, int]], activation: str, use_bias: bool, precision: str
) -> None:
    layer = Dense(5, activation=activation, use_bias=use_bias)
    whole = played(layer, 6, 2, 3, batch=4, precision=precision)
    last = len(blocks) - 1
    calls = [whole.kernel.forward(block=b, first=i == 0, last=i == last) for i, b in enumerate(blocks)]
    expected = whole.given.reference.forward(whole.given.inputs, whole.given.parameters)
    for _ in range(2):
        for call in calls:
            call()
        assert_near(whole.arrays.output, expected, precision)


def test_a_sum_of_blocks_in_bfloat16_is_rounded_once() -> None:
    """64 + 7 x 0.25 is 65.75, which becomes 66; rounded after each term it would stay 64."""
    layer = played(Dense(1, use_bias=False), 8, batch=1, precision="bfloat16")
    layer.arrays.inputs[0][...] = stored(np.full((8, 1), 0.25), "bfloat16")
    layer.arrays.inputs[0][0] = stored(np.full(1, 64.0), "bfloat16")
    layer.arrays.parameters[0][...] = stored(np.ones((1, 8)), "bfloat16")
    for i in range(8):
        layer.kernel.forward(block=(i, i + 1), first=i == 0, last=i == 7)()
    assert layer.state == 66


@pytest.mark.parametrize("precision", PRECISIONS)
def test_errors_of_some_rows_are_written_or_added(precision: str) -> None:
    layer = played(Dense(5), 6, 2, batch=4, precision=precision)
    out, kernel = layer.arrays.grad_input(0), layer.kernel
    state = layer.given.reference.forward(layer.given.inputs, layer.given.parameters)
    (expected,), _ = layer.given.reference.backward(
        layer.given.inputs, state, layer.given.error, layer.given.parameters
    )
    kernel.backward_input(0, ((0, 2), (3, 4)), accumulate=False)()
    assert_near(out[[0, 1, 3]], expected[[0, 1, 3]], precision)
    assert (upcast_array(out[[2, 4, 5]]) == 7).all()
    kernel.backward_input(0, ((1, 3),), accumulate=True)()
    assert_near(out[1], 2 * expected[1], precision)
    assert_near(out[2], 7 + expected[2], precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@given(cuts=cut_points(9))
@settings(max_examples=examples(8))
def test_gradients_of_runs_of_rows_are_those_of_the_whole(precision: str, cuts: list[int]) -> None:
    layer = played(Dense(9, activation="relu"), 4, 3, batch=5, precision=precision)
    state = layer.given.reference.forward(layer.given.inputs, layer.given.parameters)
    layer.kernel.forward()()
    layer.kernel.backward_activation()()
    _, expected = layer.given.reference.backward(
        layer.given.inputs, state, layer.given.error, layer.given.parameters
    )
    whole = layer.gradients(9)
    layer.kernel.backward_parameters(whole)()
    for rows in pairwise([0, *sorted(set(cuts)), 9]):
        piece = layer.gradients(rows[1] - rows[0])
        layer.kernel.backward_parameters(piece, rows)()
        for found, all_rows, true in zip(piece, whole, expected, strict=True):
            assert_near(found, true[slice(*rows)], precision)
            assert_near(all_rows, true, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "relu", "linear"])
def test_a_whole_step_is_near_float64(activation: str, precision: str) -> None:
    layer = played(Dense(8, activation=activation), 50, batch=16, precision=precision)
    given_case, kernel = layer.given, layer.kernel
    gradients = layer.gradients(8)
    calls = [
        kernel.forward(),
        kernel.backward_activation(),
        kernel.backward_input(0, ((0, 50),), accumulate=False),
        kernel.backward_parameters(gradients),
    ]
    state = given_case.reference.forward(given_case.inputs, given_case.parameters)
    for call in calls:
        call()
    assert_near(layer.arrays.output, state, precision)
    # Downward from the states that were found: where a state is rounded its slope is another, and not worse.
    errors, true = given_case.reference.backward(
        given_case.inputs, layer.state.astype(np.float64), given_case.error, given_case.parameters
    )
    for found, expected in zip((layer.arrays.grad_input(0), *gradients), (*errors, *true), strict=True):
        scale = np.abs(expected).max()
        assert_near(found, expected, precision) if precision != "bfloat16" else np.testing.assert_allclose(
            upcast_array(found), expected, atol=0.02 * scale
        )


def test_a_float32_case_of_the_other_tests_too() -> None:
    downcast = case(Dense(8, activation="sigmoid"), (50,), batch=16, dtype=np.float32)
    assert_true(downcast, play(downcast), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_threads_do_not_show_in_what_is_not_a_product(precision: str) -> None:
    one, two = (
        played(Dense(9, activation="sigmoid"), 6, batch=8, precision=precision, threads=n) for n in (1, 2)
    )
    for layer in (one, two):
        layer.arrays.output[...] = stored(np.random.default_rng(0).normal(size=(9, 8)), precision)
        layer.kernel.backward_activation()()
        layer.kernel.pool.close()
    assert one.arrays.own_grad.tobytes() == two.arrays.own_grad.tobytes()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_step_allocates_nothing(precision: str) -> None:
    layer = played(Dense(60, activation="sigmoid"), 70, batch=64, precision=precision)
    kernel, gradients = layer.kernel, layer.gradients(60)
    calls: list[Call] = [
        kernel.forward(block=(0, 30), first=True, last=False),
        kernel.forward(block=(30, 70), first=False, last=True),
        kernel.backward_activation(),
        kernel.backward_input(0, ((0, 40),), accumulate=False),
        kernel.backward_input(0, ((40, 70),), accumulate=True),
        kernel.backward_parameters(gradients),
        kernel.forward(),
    ]
    for _ in range(2):
        tracemalloc.start()
        for call in calls:
            call()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < layer.arrays.output.nbytes / 4
