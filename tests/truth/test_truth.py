"""The truth: a network in parts computes what the whole one does, in any order, over any transport."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from partita.engine import SGD, Session
from partita.engine.parameters import initialise
from partita.layers import BatchNorm, Dense, Dropout, Graph, LocallyConnected2D, Network, SoftmaxCrossEntropy
from partita.layers.layer import Placeholder
from partita.partitioner import Cluster, Plan, RowSplit, StepKind, partition
from tests.draws import examples
from tests.plans import kinds, plans
from tests.properties.results import assert_same
from tests.truth.interleaved import InterleavedReplica, draw_batch, play, play_with, whole

SLOW_DRAWS = settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@SLOW_DRAWS
@given(plan=plans(local=True, shared=True), seed=st.integers(0, 1 << 30))
def test_local_networks_agree_to_the_bit(plan: Plan, seed: int) -> None:
    """States, errors and gradients in float32, for any cut and any interleaving.

    Not what machines add up each for itself: a loss over cut scores, the gradient of shared weights, and
    everything below a loss whose errors need such a sum, or below nodes that several machines compute, each
    with a share of their errors.
    """
    graph, owned = plan.graph, plan.ownership
    rounded = {loss for loss in graph.losses if owned.loss_shards(loss)}
    rounded |= {p.name for grid in graph.grids if owned.weight_receivers(grid.name) for p in grid.parameters}
    copied = sum(piece.stop - piece.start for piece in plan.pieces) > sum(g.n_rows for g in graph.computed)
    if copied or any(owned.summary_senders(loss) for loss in graph.losses):
        rounded |= graph.parameters.keys()
        rounded |= {str(edge.buffer) for grid in graph.computed for edge in owned.edges(grid.name)}
    assert_same(play(plan, seed=seed), play(whole(plan), seed=0), tolerance=0.0, rounded=rounded)


@SLOW_DRAWS
@given(plan=plans(precision="float64", shared=True), seed=st.integers(0, 1 << 30))
def test_any_network_agrees_within_rounding(plan: Plan, seed: int) -> None:
    """Dense layers sum by part: in float64 the difference stays near its unit of rounding."""
    assert_same(play(plan, seed=seed), play(whole(plan), seed=0), tolerance=1e-11)


@SLOW_DRAWS
@given(plan=plans(shared=True), first=st.integers(0, 1 << 30), second=st.integers(0, 1 << 30))
def test_the_order_of_events_changes_no_bit(plan: Plan, first: int, second: int) -> None:
    """Same plan, same bits: sums are taken in an order that the plan fixes."""
    assert_same(play(plan, seed=first), play(plan, seed=second), tolerance=0.0)


@SLOW_DRAWS
@given(plan=plans(shared=True), kind=kinds, seed=st.integers(0, 1 << 30))
def test_what_is_sent_is_what_was_planned(plan: Plan, kind: StepKind, seed: int) -> None:
    """Messages equal the plan's, in number, rows and bytes; on the second step as on the first."""
    parameters = initialise(plan.graph.parameters.values(), 7, dtype=plan.precision)
    replica = InterleavedReplica(plan, parameters, seed=seed, kind=kind, optimizer=SGD(0.01))
    messages = plan.messages_for(kind)
    planned = sorted((str(m.buffer), m.rows, m.source, m.destination, m.n_bytes) for m in messages)
    batch = draw_batch(plan.graph, plan.batch, 11)
    assert sorted(replica.step(batch, number=0).sent) == planned
    assert sorted(replica.step(batch, number=1).sent) == planned


@SLOW_DRAWS
@given(plan=plans(shared=True), seed=st.integers(0, 1 << 30))
def test_nothing_is_left_over_from_the_step_before(plan: Plan, seed: int) -> None:
    parameters = initialise(plan.graph.parameters.values(), 7, dtype=plan.precision)
    replica = InterleavedReplica(plan, parameters, seed=seed)
    batch = draw_batch(plan.graph, plan.batch, 11)
    first = replica.step(batch, number=0)
    assert_same(replica.step(batch, number=1), first, tolerance=0.0)


@settings(max_examples=examples(16), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans(precision="float64", shared=True), seed=st.integers(0, 1 << 30))
def test_gradients_equal_differences(plan: Plan, seed: int) -> None:
    """The gradient of the partitioned network along a random direction is the loss's slope there.

    Networks with kinks (relu, maximum, leaky sums) are skipped where the two one-sided slopes disagree.
    """
    rng = np.random.default_rng(seed)
    batch = draw_batch(plan.graph, plan.batch, 11)
    parameters = initialise(plan.graph.parameters.values(), 7, dtype="float64")
    assume(parameters)
    learnt = {name: array for name, array in parameters.items() if name not in plan.graph.averaged}
    direction = {name: rng.normal(size=array.shape) for name, array in learnt.items()}
    masked = any(isinstance(grid.layer, Dropout | BatchNorm) for grid in plan.graph.grids)
    step, up = 1e-5, StepKind(train=masked, gradients="whole").of(plan.graph)

    def loss(shift: float) -> float:
        moved = parameters | {name: array + shift * direction[name] for name, array in learnt.items()}
        return InterleavedReplica(plan, moved, seed=seed, kind=up).step(batch).loss / plan.batch

    middle, right, left = loss(0.0), loss(step), loss(-step)
    slopes = (right - middle) / step, (middle - left) / step
    assume(abs(slopes[0] - slopes[1]) < 1e-4 * (1 + abs(slopes[0])))
    gradients = InterleavedReplica(plan, parameters, seed=seed).step(batch).gradients
    along = sum(float((gradients[name] * direction[name]).sum()) for name in learnt)
    assert along == pytest.approx((right - left) / (2 * step), rel=1e-3, abs=1e-4)


@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans(max_layers=5, shared=True), seed=st.integers(0, 1 << 30))
def test_threads_and_mailboxes_change_no_bit(plan: Plan, seed: int) -> None:
    """The same plan on hosts with threads of their own, over the in-process transport."""
    batch = draw_batch(plan.graph, plan.batch, seed)
    parameters = initialise(plan.graph.parameters.values(), 7, dtype=plan.precision)
    expected = InterleavedReplica(plan, parameters, seed=seed).step(batch)
    names = tuple(expected.states)
    with Session(plan, parameters, train=True) as session:
        for _ in range(3):
            step = session.step(batch, collect=(*names, "gradient"))
    for name in names:
        np.testing.assert_array_equal(step.collected[name], expected.states[name])
    for name, gradient in expected.gradients.items():
        np.testing.assert_array_equal(step.vectors["gradient"][name], gradient)


def conv_and_dense() -> Graph:
    """Two local layers and a dense one, over 12 rows."""
    net = Network("truth")
    picture = net.input("picture", shape=(12, 5, 2))
    first = LocallyConnected2D(3, 3, activation="tanh", name="first")(picture)
    second = LocallyConnected2D(2, 3, padding="same", activation="sigmoid", name="second")(first)
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(7, name="scores")(second), net.target("label"))
    return net.graph()


@pytest.mark.parametrize("machines", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 4, 6)), 3])
def test_processes_agree_with_the_whole(machines: int) -> None:
    """Over real processes: local layers to the bit, dense ones within rounding; the wire counts agree."""
    graph = conv_and_dense()
    cuts = {"scores": RowSplit(min(machines, 7))}
    plan = partition(graph, Cluster.local(machines=machines), batch=5, cuts=cuts, strategy="balanced")
    batch = draw_batch(graph, 5, 3)
    parameters = initialise(graph.parameters.values(), 7, dtype="float32")
    expected = play_with(whole(plan), parameters, batch)
    ordered = play_with(plan, parameters, batch)
    names = tuple(expected.states)
    with Session(plan, parameters, train=True, hosts="processes") as session:
        session.step(batch)
        step = session.step(collect=(*names, "gradient"))
    for machine, wire in enumerate(step.sent):
        planned = [m.n_bytes for m in plan.messages if m.source == machine]
        assert (wire.messages, wire.n_bytes) == (len(planned), sum(planned))
    for name in ("first", "second"):
        np.testing.assert_array_equal(step.collected[name], expected.states[name])
    for name in names:
        np.testing.assert_array_equal(step.collected[name], ordered.states[name])
        np.testing.assert_allclose(step.collected[name], expected.states[name], rtol=2e-6, atol=2e-6)
    for name, gradient in ordered.gradients.items():
        np.testing.assert_array_equal(step.vectors["gradient"][name], gradient)


@settings(max_examples=examples(24), deadline=None)
@given(
    inputs=st.integers(1, 300),
    units=st.integers(2, 12),
    machines=st.integers(2, 6),
    seed=st.integers(0, 1 << 30),
)
def test_a_dense_layer_stays_within_its_stated_rounding(
    inputs: int, units: int, machines: int, seed: int
) -> None:
    """A sum of n products, cut anywhere, is off by at most n u / (1 - n u) of the sum of their sizes."""
    net = Network("dense")
    hidden = Dense(inputs, activation="tanh", name="hidden")(net.input("x", shape=(3,)))
    net.loss = SoftmaxCrossEntropy()(Dense(units, name="scores")(hidden), net.target("label"))
    graph = net.graph()
    cuts = {"hidden": RowSplit(min(machines, inputs)), "scores": RowSplit(min(machines, units))}
    plan = partition(graph, Cluster.local(machines=machines), batch=4, cuts=cuts, strategy="balanced")
    parameters = initialise(graph.parameters.values(), seed, dtype="float32")
    batch = draw_batch(graph, 4, seed)
    found = InterleavedReplica(plan, parameters, seed=seed).step(batch)
    weight = parameters["scores.weight"].astype(np.float64)
    states = found.states["hidden"].astype(np.float64)
    exact = weight @ states + parameters["scores.bias"].astype(np.float64)[:, None]
    n = (inputs + machines + 1) * np.finfo(np.float32).eps / 2
    bound = n / (1 - n) * (np.abs(weight) @ np.abs(states) + np.abs(parameters["scores.bias"])[:, None])
    assert (np.abs(found.states["scores"] - exact) <= bound + 1e-30).all()


def test_labels_are_whole_numbers_in_the_batch() -> None:
    """The drawn batches feed labels where a target has classes."""
    graph = conv_and_dense()
    (target,) = graph.targets
    assert isinstance(target.layer, Placeholder)
    assert draw_batch(graph, 4, 0)[target.name].dtype.kind == "i"
