"""Parameters after a step are the same for every way to keep gradients and memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partita.engine import LARS, SGD, Momentum, Optimizer
from partita.engine.parameters import initialise
from partita.partitioner import Cluster, Plan, StepKind, partition
from tests.draws import examples
from tests.plans import kinds, plans
from tests.properties.results import assert_close
from tests.truth.interleaved import InterleavedReplica, Result, draw_batch

SLOW_DRAWS = settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
SEEDS = st.integers(0, 1 << 30)


def trained(
    plan: Plan,
    kind: StepKind,
    optimizer: Optimizer,
    *,
    seed: int = 0,
    steps: int = 2,
    keep: tuple[str, ...] | None = None,
) -> Result:
    """The last of some steps, on a batch and parameters that the network determines."""
    parameters = initialise(plan.graph.parameters.values(), 7, dtype=plan.precision)
    replica = InterleavedReplica(plan, parameters, seed=seed, kind=kind, optimizer=optimizer, keep=keep)
    batch = draw_batch(plan.graph, plan.batch, 11)
    return [replica.step(batch, number=n) for n in range(steps)][-1]


@pytest.mark.slow
@SLOW_DRAWS
@given(plan=plans(precision="float64", shared=True), seed=SEEDS)
def test_learning_in_blocks_is_learning(plan: Plan, seed: int) -> None:
    optimizer = Momentum(0.01, 0.9)
    whole = trained(plan, StepKind(gradients="whole"), optimizer)
    assert_close(trained(plan, StepKind(), optimizer, seed=seed), whole, tolerance=1e-11)


@SLOW_DRAWS
@given(plan=plans(precision="float64", shared=True), seed=SEEDS)
def test_gradients_are_clipped_by_their_norm_over_all_machines(plan: Plan, seed: int) -> None:
    parameters = initialise(plan.graph.parameters.values(), 7, dtype="float64")
    gradients = trained(plan, StepKind(gradients="whole"), SGD(0.0001), steps=1).gradients
    for name in plan.graph.averaged:  # what a running average moves by counts in no norm, and is not clipped
        del gradients[name]
    norm = math.sqrt(sum(float((array**2).sum()) for array in gradients.values()))
    most = 0.5 * norm if norm > 1e-3 else 1.0
    found = trained(plan, StepKind(norms=True), SGD(0.01, clip_norm=most), seed=seed, steps=1)
    factor = min(1.0, most / (norm + 1e-6))
    for name, gradient in gradients.items():
        expected = parameters[name] - 0.01 * factor * gradient
        np.testing.assert_allclose(found.parameters[name], expected, rtol=1e-10, atol=1e-10, err_msg=name)


@SLOW_DRAWS
@given(plan=plans(precision="float64", shared=True), seed=SEEDS)
def test_a_rate_by_the_norms_of_a_layer_is_that_of_the_whole_layer(plan: Plan, seed: int) -> None:
    """LARS over any cut, against the network on one machine."""
    alone = partition(plan.graph, Cluster.local(), batch=plan.batch, precision="float64")
    optimizer, kind = LARS(0.1, trust=0.01), StepKind(norms=True)
    assert_close(trained(plan, kind, optimizer, seed=seed), trained(alone, kind, optimizer), tolerance=1e-9)


@pytest.mark.slow
@settings(SLOW_DRAWS, max_examples=examples(10))
@given(plan=plans(shared=True), kind=kinds, seed=SEEDS)
def test_windows_that_share_memory_change_no_bit(plan: Plan, kind: StepKind, seed: int) -> None:
    """The windows start as NaN, which reveals every read of an unwritten number."""
    optimizer = SGD(0.01, clip_norm=1.0)
    apart = trained(plan, kind, optimizer, seed=seed)
    shared = trained(plan, kind, optimizer, seed=seed, keep=())
    assert shared.loss == apart.loss
    for name, array in apart.parameters.items():
        np.testing.assert_array_equal(shared.parameters[name], array, err_msg=name)
