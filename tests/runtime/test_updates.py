"""A part's own steps: any range of its parameters, what accumulates, and what schedules go by."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine import LARS, SGD, Adam, AdamW, InverseTime, Momentum, Optimizer
from partita.engine.numerics import downcast_array
from partita.engine.parameters import UpdateContext
from partita.engine.runtime import updates as updates_module
from partita.engine.runtime.buffers import Vectors
from partita.engine.runtime.local_optimizer import LocalOptimizer
from partita.engine.runtime.updates import GradientAccumulation
from partita.partitioner import Cluster, partition
from tests.draws import examples
from tests.faults import toy

RULES = [SGD(0.1), Momentum(0.1), AdamW(InverseTime(0.1, 2))]


def vectors_of(precision: str) -> Vectors:
    plan = partition(
        toy.network(), Cluster.local(machines=1), batch=4, precision=precision, strategy="balanced"
    )
    vectors = Vectors(plan, 0, gradient=False)
    vectors.parameters[:] = np.random.default_rng(0).standard_normal(vectors.parameters.size)
    vectors.changed()
    return vectors


@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
@given(optimizer=st.sampled_from(RULES), data=st.data())
@settings(max_examples=examples(20))
def test_ranges_are_updated_as_the_whole_is(
    precision: str, optimizer: Optimizer, data: st.DataObject
) -> None:
    whole, cut = vectors_of(precision), vectors_of(precision)
    n, dtype = whole.parameters.size, whole.parameters.dtype
    places = [0, *sorted(data.draw(st.sets(st.integers(1, n - 1), max_size=4))), n]
    gradient, scratch = np.zeros(n, dtype), np.zeros(n, dtype)  # one scratch for every range, from its start
    one, many = LocalOptimizer(optimizer, whole), GradientAccumulation(optimizer, cut)
    update = one.bind(slice(0, n), gradient)
    updates = [(slice(a, b), many.bind(slice(a, b), scratch[: b - a])) for a, b in pairwise(places)]
    total = np.zeros(n, dtype)
    for step in range(3):
        one.advance()
        many.advance()
        gradient[:] = np.random.default_rng(step).standard_normal(n)
        assert update(0.5)
        for span, apply in updates:
            scratch[: span.stop - span.start] = gradient[span]
            assert apply(0.5)
        total += dtype.type(0.5) * gradient
    assert whole.parameters.tobytes() == cut.parameters.tobytes()
    assert np.array_equal(many.accumulated, total)
    if cut.copy is not None:
        assert np.array_equal(cut.copy, downcast_array(cut.parameters, np.zeros_like(cut.copy)))


def test_a_bfloat16_gradient_updates_masters() -> None:
    vectors = vectors_of("bfloat16")
    before = vectors.parameters.copy()
    optimizer = LocalOptimizer(SGD(0.5), vectors)
    optimizer.advance()
    bits = downcast_array(np.full(before.size, 0.25, np.float32), np.zeros(before.size, np.uint16))
    assert optimizer.bind(slice(0, before.size), bits)(1.0)
    assert np.array_equal(vectors.parameters, before - np.float32(0.125))


def test_schedules_go_by_what_parameters_have_been_through_and_adam_by_its_own_age() -> None:
    vectors = vectors_of("float64")
    span, n = slice(0, vectors.parameters.size), vectors.parameters.size
    before, gradient = vectors.parameters.copy(), np.ones(n)
    for optimizer, steps in [
        (SGD(InverseTime(1.0, 1)), [1, 1 / 2, 1 / 8, 1 / 9, 1 / 6]),
        (Adam(InverseTime(1.0, 1)), [1, 1 / 2, 1 / 8, 1 / 9, 1 / 6]),  # of equal gradients a step is the rate
    ]:
        vectors.parameters[:] = before
        local = LocalOptimizer(optimizer, vectors)
        apply = local.bind(span, gradient)
        for received, expected in zip([None, None, 7, None, 5], steps, strict=True):
            was = vectors.parameters.copy()
            local.advance(received)
            apply(1.0)
            assert was - vectors.parameters == pytest.approx(np.full(n, expected), rel=1e-6)


def test_what_accumulates_is_scaled_and_flies_once() -> None:
    vectors = vectors_of("float64")
    accumulation = GradientAccumulation(SGD(0.5), vectors)
    span = slice(2, 5)
    apply = accumulation.bind(span, np.array([1.0, 2.0, 3.0]))
    accumulation.advance()
    apply(1.0)
    accumulation.advance()
    apply(0.5)
    accumulation.swap_buffers(span)
    assert accumulation.in_flight[:6].tolist() == [0, 0, 1.5, 3.0, 4.5, 0]
    assert not accumulation.accumulated.any()
    assert not apply(math.inf), "a factor that is not finite is said"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", [*RULES, LARS(InverseTime(0.1, 2))], ids=str)
def test_over_new_parameters_gradients_are_applied_as_on_a_shard_by_the_parts_own_state(
    optimizer: Optimizer, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is copied block by block, and does not change."""
    monkeypatch.setattr(updates_module, "_IN_CACHE", 16)
    vectors = vectors_of(precision)
    n, random = vectors.parameters.size, np.random.default_rng(1)
    part, gradient = GradientAccumulation(optimizer, vectors), np.zeros(n, vectors.dtype)
    update = part.bind(slice(0, n), gradient)
    for step in range(3):
        part.advance(step)
        gradient[:] = random.standard_normal(n)
        update(1.0)
        if step == 1:
            part.swap_buffers(slice(0, n))
    state = {name: vector.copy() for name, vector in part._state.items()}
    span, new = slice(5, n - 3), random.standard_normal(n).astype(vectors.dtype)
    vectors.arriving(span)[:] = new[span]
    vectors.changed(span)
    before = vectors.parameters.copy()
    part.install(span, ("in_flight", "accumulated"), 7, (0.5, 2.0))
    expected = before[span].copy()
    for n_updates, name, scale in ((7, "in_flight", 0.5), (8, "accumulated", 2.0)):
        own = {kept: vector[span].copy() for kept, vector in state.items()}
        on_shard = optimizer.on_shard().bind(expected, getattr(part, name)[span], own)
        assert on_shard(UpdateContext(n_updates, age=3, scale=scale))
    assert vectors.parameters[span].tobytes() == expected.tobytes()
    assert np.array_equal(vectors.parameters[:5], before[:5])
    for name, vector in state.items():
        assert part._state[name].tobytes() == vector.tobytes(), name
    if vectors.copy is not None:
        assert np.array_equal(vectors.copy[span], downcast_array(expected, np.zeros_like(vectors.copy[span])))
