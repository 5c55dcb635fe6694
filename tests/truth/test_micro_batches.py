"""Micro-batches compute what one minibatch does, overlapped minibatches what delayed SGD does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from partita.engine import LARS, SGD, Momentum, Optimizer
from partita.engine.parameters import initialise
from partita.layers import BatchNorm, Dense, Graph, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, StepKind, Whole, partition
from tests.draws import examples
from tests.plans import kinds, plans
from tests.properties.results import assert_close, assert_same
from tests.truth.interleaved import InterleavedReplica, Result, draw_batch, on_one_machine

FEW_DRAWS = settings(
    max_examples=examples(8),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
SEEDS = st.integers(0, 1 << 30)
portioned = plans(precision="float64", shared=True, micro_batches=3, max_batch=2, max_layers=4)


def play(
    plan: Plan,
    kind: StepKind,
    *,
    seed: int,
    optimizer: Optimizer | None = None,
    keep: tuple[str, ...] | None = None,
) -> Result:
    """The second of two steps, on batches and parameters that the network determines."""
    parameters = initialise(plan.graph.parameters.values(), 7, dtype=plan.precision)
    replica = InterleavedReplica(plan, parameters, seed=seed, kind=kind, optimizer=optimizer, keep=keep)
    batch = draw_batch(plan.graph, plan.batch * kind.overlap, 11)
    return [replica.step(batch, number=n) for n in range(2)][-1]


@FEW_DRAWS
@given(plan=portioned, seed=SEEDS)
def test_micro_batches_compute_what_the_whole_network_does(plan: Plan, seed: int) -> None:
    """Losses, states, errors, gradients and updated parameters, over any cut, in any order."""
    assume(plan.micro_batches > 1)
    kind, optimizer = StepKind(gradients="whole"), SGD(0.01)
    found, expected = (play(p, kind, seed=seed, optimizer=optimizer) for p in (plan, on_one_machine(plan)))
    assert_same(found, expected, tolerance=1e-11)
    assert found.loss == pytest.approx(expected.loss, rel=1e-11, abs=1e-11)
    assert_close(found, expected, tolerance=1e-11)


@FEW_DRAWS
@given(
    plan=portioned,
    kind=kinds,
    optimizer=st.sampled_from([Momentum(0.01, 0.9), LARS(0.1, trust=0.01)]),
    seed=SEEDS,
)
def test_micro_batches_learn_what_the_whole_network_does(
    plan: Plan, kind: StepKind, optimizer: Optimizer, seed: int
) -> None:
    """Updates in blocks, whole or by norms, with windows that share memory and start with any numbers."""
    assume(plan.micro_batches > 1 and kind.train)
    kind = replace(kind, norms=optimizer.needs_norms)
    found = play(plan, kind, seed=seed, optimizer=optimizer, keep=())
    assert_close(found, play(on_one_machine(plan), kind, seed=0, optimizer=optimizer), tolerance=1e-9)


@FEW_DRAWS
@given(plan=portioned, kind=kinds, overlap=st.integers(1, 4), first=SEEDS, second=SEEDS)
def test_the_order_of_events_changes_no_bit(
    plan: Plan, kind: StepKind, overlap: int, first: int, second: int
) -> None:
    """Memory that micro-batches and windows share changes no bit either."""
    kind, optimizer = replace(kind, overlap=overlap).of(plan.graph), SGD(0.01)
    one = play(plan, kind, seed=first, optimizer=optimizer)
    other = play(plan, kind, seed=second, optimizer=optimizer, keep=())
    assert one.loss == other.loss
    for name, array in one.parameters.items():
        np.testing.assert_array_equal(other.parameters[name], array, err_msg=name)


@FEW_DRAWS
@given(plan=portioned, kind=kinds, overlap=st.integers(1, 3), seed=SEEDS)
def test_what_is_sent_is_what_was_planned(plan: Plan, kind: StepKind, overlap: int, seed: int) -> None:
    kind = replace(kind, overlap=overlap).of(plan.graph)
    planned = [(str(m.buffer), m.rows, m.source, m.destination, m.n_bytes) for m in plan.messages_for(kind)]
    assert sorted(play(plan, kind, seed=seed, optimizer=SGD(0.01)).sent) == sorted(planned)


def perceptron() -> Graph:
    """Four dense layers."""
    net = Network("perceptron")
    states = net.input("x", shape=(6,))
    for n in range(1, 4):
        states = Dense(5, activation="tanh", name=f"h{n}")(states)
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(4, name="scores")(states), net.target("label"))
    return net.graph()


ORDER = ("h1", "h2", "h3", "scores")
RATE = 0.3


def delayed_sgd(
    parameters: dict[str, np.ndarray],
    batches: list[tuple[np.ndarray, np.ndarray]],
    depth: dict[str, int],
) -> list[float]:
    """Plain SGD on the whole network, each of whose layers learns late, written by hand.

    A layer `depth` machines before the loss updates by a minibatch `depth` minibatches later. A forward pass
    finds the updates of all but the last `depth` minibatches; the backward pass uses the current parameters.
    """
    losses = []
    before: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in ORDER}
    for turn in range(len(batches)):
        for name in ORDER:  # what each layer was when this minibatch went up
            keys = (f"{name}.weight", f"{name}.bias")
            before[name].append({key: parameters[key].copy() for key in keys})
        x, label = batches[turn]
        states = [x]
        for name in ORDER:
            late = min(depth[name], turn)
            held = before[name][turn - late]
            z = states[-1] @ held[f"{name}.weight"].T + held[f"{name}.bias"]
            states.append(z if name == "scores" else np.tanh(z))
        shifted = np.exp(states[-1] - states[-1].max(axis=1, keepdims=True))
        chances = shifted / shifted.sum(axis=1, keepdims=True)
        rows = np.arange(len(label))
        losses.append(float(-np.log(chances[rows, label]).sum()))
        chances[rows, label] -= 1
        error = chances / len(label)
        for n in reversed(range(len(ORDER))):
            name = ORDER[n]
            if name != "scores":
                error = error * (1 - states[n + 1] ** 2)
            below = error @ parameters[f"{name}.weight"]
            parameters[f"{name}.weight"] -= RATE * error.T @ states[n]
            parameters[f"{name}.bias"] -= RATE * error.sum(axis=0)
            error = below
    return losses


@pytest.mark.parametrize(
    "stages",
    [(0, 0, 0, 1), (0, 1, 2, 3), (0, 1, 1, 1), (0, 0, 0, 0)],
    ids=lambda stages: str(max(stages) + 1),
)
def test_overlapped_minibatches_learn_as_delayed_sgd_does(stages: tuple[int, ...]) -> None:
    """The same updates in the same order as plain SGD whose layers learn late, over two steps of four."""
    graph, machines, overlap, size = perceptron(), max(stages) + 1, 4, 3
    cuts = {name: Whole(m) for name, m in zip((*ORDER, "loss"), (*stages, machines - 1), strict=True)}
    plan = partition(graph, Cluster.local(machines), batch=size, cuts=cuts, precision="float64")
    parameters = initialise(graph.parameters.values(), 7, dtype="float64")
    replica = InterleavedReplica(
        plan, parameters, seed=3, kind=StepKind(overlap=overlap), optimizer=SGD(RATE), keep=plan.kept
    )
    expected = {name: array.copy() for name, array in parameters.items()}
    depth = {name: machines - 1 - m for name, m in zip(ORDER, stages, strict=True)}
    for number in range(2):
        batch = draw_batch(graph, overlap * size, 20 + number)
        batches = [
            (batch["x"][n : n + size], batch["label"][n : n + size, 0])
            for n in range(0, overlap * size, size)
        ]
        losses = delayed_sgd(expected, batches, depth)
        found = replica.step(batch, number=number)
        assert found.loss == pytest.approx(sum(losses), rel=1e-12)
    for name, array in expected.items():
        np.testing.assert_allclose(found.parameters[name], array, rtol=1e-10, atol=1e-12, err_msg=name)


@FEW_DRAWS
@given(
    plan=plans(precision="float64", shared=True, micro_batches=3, max_batch=3, max_layers=4, tiles=False),
    share=st.floats(0, 1),
    seed=SEEDS,
)
def test_padding_has_no_errors(plan: Plan, share: float, seed: int) -> None:
    """Numbers beyond the real examples change no loss and no gradient, over any cut, of any loss: these are
    means over the real examples. Statistics of a batch are those of a micro-batch.
    """
    assume(plan.micro_batches == 1 or not any(isinstance(g.layer, BatchNorm) for g in plan.graph.grids))
    real = 1 + round(share * (plan.batch - 1))
    parameters = initialise(plan.graph.parameters.values(), 7, dtype=plan.precision)
    batch = draw_batch(plan.graph, plan.batch, 11)
    found = InterleavedReplica(plan, parameters, seed=seed).step(batch, examples=real)
    fewer = partition(plan.graph, Cluster.local(), batch=real, precision=plan.precision)
    expected = InterleavedReplica(fewer, parameters, seed=0).step(
        {name: array[:real] for name, array in batch.items()}
    )
    assert found.loss == pytest.approx(expected.loss, rel=1e-11, abs=1e-11)
    for name, gradient in expected.gradients.items():
        scale = max(1.0, float(np.abs(gradient).max(initial=0.0)))
        ours = found.gradients[name]
        np.testing.assert_allclose(ours, gradient, rtol=0, atol=1e-11 * scale, err_msg=name)


@pytest.mark.parametrize("real", range(1, 13))
def test_minibatches_without_examples_teach_nothing(real: int) -> None:
    """Runs three overlapped minibatches of four, one after another on one machine."""
    graph, optimizer = perceptron(), Momentum(0.3, 0.9)
    batch = draw_batch(graph, 12, 11)
    plan = partition(graph, Cluster.local(), batch=4, precision="float64")
    parameters = initialise(plan.graph.parameters.values(), 7, dtype="float64")
    together = InterleavedReplica(
        plan, parameters, seed=0, kind=StepKind(overlap=3).of(graph), optimizer=optimizer
    )
    found = together.step(batch, examples=real)
    apart = InterleavedReplica(plan, parameters, seed=0, kind=StepKind(), optimizer=optimizer)
    loss = 0.0
    for first in range(0, real, 4):
        examples = {name: array[first : first + 4] for name, array in batch.items()}
        result = apart.step(examples, number=first // 4, examples=min(4, real - first))
        loss += result.loss
    assert found.loss == pytest.approx(loss, rel=1e-12)
    for name, array in result.parameters.items():
        np.testing.assert_allclose(found.parameters[name], array, rtol=1e-12, atol=1e-14, err_msg=name)
