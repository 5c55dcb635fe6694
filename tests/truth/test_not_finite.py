"""A number that is not finite is said of the layer that first computed it, whichever machine finds it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from partita.engine import SGD, Downpour, RunFailed, train
from partita.engine.parameters import initialise
from partita.engine.runtime.nonfinite import NonfiniteArray
from partita.layers import Dense, LocallyConnected2D, MaxPool2D, Network, Node, OneToOne, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, RowSplit, StepKind, partition
from tests.truth.interleaved import InterleavedReplica, draw_batch


def passes(incoming):  # type: ignore[no-untyped-def]
    return incoming[0]


def passes_errors(incoming, state, error):  # type: ignore[no-untyped-def]
    return (0 * incoming + error,)


def is_no_number(incoming):  # type: ignore[no-untyped-def]
    return math.sqrt(-1.0 - incoming[0] * incoming[0])


def errors_that_are_no_numbers(incoming, state, error):  # type: ignore[no-untyped-def]
    return (0 * incoming + math.sqrt(-1.0 - error * error),)


KINDS = {
    "states": (is_no_number, passes_errors, "the states of 'odd' are"),
    "errors": (passes, errors_that_are_no_numbers, "the errors that 'odd' computes for 'pool' are"),
}


def plan_with(up: Any, down: Any, machines: int, parts: dict[str, int]) -> Plan:
    """Dense layers and a pool below and above a layer of the user's, which computes what is no number."""
    net = Network("odd")
    low = LocallyConnected2D(2, 3, activation="tanh", name="low")(net.input("x", shape=(8, 8, 1)))
    odd = Node(OneToOne(), up, down, name="odd")(MaxPool2D(2, name="pool")(low))
    high = Dense(6, activation="tanh", name="high")(odd)
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(4, name="scores")(high), net.target("y"))
    cuts = {layer: RowSplit(n) for layer, n in parts.items()}
    return partition(net, Cluster.local(machines=machines), batch=4, cuts=cuts, strategy="balanced")


def suspects(plan: Plan, seed: int) -> list[NonfiniteArray | None]:
    """Suspects of the machines that found something in a step."""
    parameters = initialise(plan.graph.parameters.values(), 7)
    kind = StepKind(gradients="blocks")
    played = InterleavedReplica(plan, parameters, seed=seed, kind=kind, optimizer=SGD(0.1), keep=plan.kept)
    with np.errstate(all="ignore"):
        played.step(draw_batch(plan.graph, plan.batch, 11))
    found = [player.computations for player in played.players]
    return [one.watch.suspect for one in found if one.not_finite or not math.isfinite(one.metrics.loss)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("machines", "parts"), [(1, {}), (2, {}), (3, {"low": 2, "odd": 1, "high": 2})])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_first_layer_is_blamed(kind: str, machines: int, parts: dict[str, int], seed: int) -> None:
    up, down, what = KINDS[kind]
    found = suspects(plan_with(up, down, machines, parts), seed)
    assert found, "nobody has noticed"
    for suspect in found:
        assert suspect is not None
        assert suspect.what == what or suspect.received
    assert any(suspect.what == what for suspect in found if suspect is not None)


def test_a_parameter_that_was_bad_before_the_step_is_blamed() -> None:
    plan = plan_with(passes, passes_errors, 1, {})
    parameters = initialise(plan.graph.parameters.values(), 7)
    parameters["high.weight"][0, 0] = math.nan
    kind = StepKind(gradients="blocks")
    played = InterleavedReplica(plan, parameters, seed=0, kind=kind, optimizer=SGD(0.1), keep=plan.kept)
    with np.errstate(all="ignore"):
        played.step(draw_batch(plan.graph, plan.batch, 11))
    assert played.players[0].computations.watch.suspect == NonfiniteArray("the parameter 'high.weight' is")


def test_a_run_over_machines_reports_it() -> None:
    plan = plan_with(*KINDS["errors"][:2], 2, {})
    draw = np.random.default_rng(0)
    data = {"x": draw.normal(size=(64, 8, 8, 1)).astype(np.float32), "y": draw.integers(0, 4, 64)}
    with pytest.raises(RunFailed) as failed:
        train(plan, data, driver=Downpour(optimizer=SGD(0.05)), epochs=1)
    text = str(failed.value)
    assert "the errors that 'odd' computes for 'pool' are not finite" in text
    assert "look at the data of this step, or at the functions of Node passes 'odd'" in text
