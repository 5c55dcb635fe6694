"""The vectors that replicas exchange: sums where they lie, updates of ranges, and the gradient before."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from partita.engine import LARS, SGD, Adagrad, Adam, Optimizer
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.protocol.events import Span
from partita.engine.runtime.buffers import Vectors, layout_of
from partita.engine.runtime.program_vectors import NormsLayout, ProgramVectors
from partita.engine.transport import Payload
from partita.partitioner import Cluster, Plan, partition
from tests.faults import toy


def plan_of(precision: str = "float32") -> Plan:
    return partition(toy.network(), Cluster.local(), batch=4, precision=precision)


def vectors_of(optimizer: Optimizer, *, plan: Plan, threads: int = 1) -> tuple[Vectors, ProgramVectors]:
    vectors, slots = Vectors(plan, 0), layout_of(plan, shards=1).machines[0]
    made = ProgramVectors(vectors, optimizer, slots, pool=ThreadPool(threads))
    numbers = np.random.default_rng(1).normal(size=made.size)
    made.restore(numbers.astype(made.dtype), None)
    return vectors, made


def compute(vectors: Vectors, made: ProgramVectors, seed: int) -> np.ndarray[Any, Any]:
    """Stands where the kernels are: writes a gradient."""
    numbers = np.random.default_rng(seed).normal(size=made.size)
    vectors.gradient[:] = numbers
    made.computed()
    found: np.ndarray[Any, Any] = vectors.gradient.copy()
    return found


def whole(made: ProgramVectors, vector: str = "gradient") -> Span:
    return Span(vector, 0, made.size)


@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
def test_sums_and_copies_land_where_they_lie(precision: str) -> None:
    vectors, made = vectors_of(SGD(0.1), plan=plan_of(precision))
    own = compute(vectors, made, 2)
    other = np.random.default_rng(3).normal(size=made.size).astype(made.dtype)
    made.add(Span("gradient", 5, made.size), Payload([memoryview(other[5:].tobytes())]))
    expected = np.concatenate([own[:5], own[5:] + other[5:]])
    np.testing.assert_array_equal(made.of(whole(made)), expected)
    made.add(Span("gradient", 0, 5), Payload([memoryview(other[:5].tobytes())]), divisor=2)
    np.testing.assert_array_equal(made.of(Span("gradient", 0, 5)), (own[:5] + other[:5]) / made.dtype.type(2))
    made.replace(whole(made, "parameters"), Payload([memoryview(other.tobytes())]))
    np.testing.assert_array_equal(vectors.parameters, other)
    made.add(whole(made, "parameters"), Payload([memoryview(other.tobytes())]), divisor=2)
    np.testing.assert_array_equal(vectors.parameters, other)
    if vectors.copy is not None:  # kernels read the rounded copy
        expected_bits = np.empty_like(vectors.copy)
        vectors.device.copy(expected_bits, other)
        np.testing.assert_array_equal(vectors.copy, expected_bits)


@pytest.mark.parametrize("optimizer", [SGD(0.1, weight_decay=0.1), Adagrad(0.1), Adam(0.01)], ids=repr)
@pytest.mark.parametrize("threads", [1, 3])
def test_ranges_are_updated_like_the_whole_to_the_bit(optimizer: Optimizer, threads: int) -> None:
    plan = plan_of("bfloat16")
    (one, at_once), (other, in_ranges) = (vectors_of(optimizer, plan=plan, threads=n) for n in (1, threads))
    ranges = [Span("parameters", *cut) for cut in pairwise([0, 7, 50, at_once.size])]
    for step in range(3):
        for vectors, made in ((one, at_once), (other, in_ranges)):
            compute(vectors, made, step)
        assert at_once.update([whole(at_once, "parameters")], updates=step)
        assert in_ranges.update([ranges[0], ranges[2]], updates=step)
        assert in_ranges.update([ranges[1]], updates=step)
    np.testing.assert_array_equal(one.parameters, other.parameters)
    np.testing.assert_array_equal(one.copy, other.copy)
    first, second = at_once.snapshot([whole(at_once)]), in_ranges.snapshot([ranges[2], ranges[0]])
    for name, numbers in {"values": first.values, **first.state}.items():
        found = second.values if name == "values" else second.state[name]
        np.testing.assert_array_equal(np.concatenate([numbers[50:], numbers[:7]]), found)
    slots = in_ranges.slots([ranges[2], ranges[0]])
    assert sum(slot.size for slot in slots) == found.size
    assert sum(slot.size for slot in in_ranges.slots(ranges)) == in_ranges.size


def test_a_state_that_is_restored_goes_on_with_the_same_bits() -> None:
    plan, optimizer = plan_of(), Adam(0.01)
    (one, first), (other, second) = (vectors_of(optimizer, plan=plan) for _ in range(2))
    compute(one, first, 0)
    first.update([whole(first, "parameters")], updates=0)
    kept = first.snapshot([whole(first)])
    second.restore(kept.values, kept.state)
    for vectors, made in ((one, first), (other, second)):
        compute(vectors, made, 1)
        made.update([whole(made, "parameters")], updates=1)
    np.testing.assert_array_equal(one.parameters, other.parameters)
    assert kept.values.tobytes() != first.snapshot([whole(first)]).values.tobytes()


def test_a_gradient_that_is_not_finite_is_reported() -> None:
    vectors, made = vectors_of(Adagrad(0.1), plan=plan_of())
    compute(vectors, made, 0)
    made.of(whole(made))[3] = np.inf
    assert not made.update([whole(made, "parameters")], updates=0)


def test_norms_are_those_of_whole_parameters_however_many_parts_add_them_up() -> None:
    plan, optimizer = plan_of("float64"), LARS(0.1, momentum=0.0, weight_decay=0.0)
    layout = NormsLayout(2, 1, tuple(plan.graph.parameters))
    vectors, slots = Vectors(plan, 0), layout_of(plan, shards=1).machines[0]
    made = ProgramVectors(vectors, optimizer, slots, norms=layout, pool=ThreadPool(1))
    numbers = np.random.default_rng(1).normal(size=made.size)
    made.restore(numbers, None)
    gradient = compute(vectors, made, 0)
    norms = Span("norms", 0, layout.size)
    made.measure([Span("parameters", 0, 40)], replica=0, machine=0)
    first = made.of(norms).copy()
    made.measure([Span("parameters", 40, made.size)], replica=1, machine=0)
    made.add(norms, Payload([memoryview(first.tobytes())]))
    made.update([whole(made, "parameters")], updates=0)
    start = 0
    for slot in slots:
        span = slice(start, start + slot.size)
        w, g = (float(np.linalg.norm(one[span])) for one in (numbers, gradient))
        factor = 0.001 * w / g if w else 1.0
        expected = numbers[span] - 0.1 * factor * gradient[span]
        np.testing.assert_allclose(vectors.parameters[span], expected, rtol=1e-12, err_msg=slot.parameter)
        start += slot.size
