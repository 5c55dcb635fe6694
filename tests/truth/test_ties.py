"""Parameters that several layers use: any cut computes what the whole network does, and what torch does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partita.engine import Adagrad
from partita.engine.parameters import initialise
from partita.layers import L2, Dense, Embedding, Flatten, HalfSquaredError, Linear, Network, Permute
from partita.partitioner import Cluster, InputSplit, Plan, RowSplit, StepKind, Whole, partition
from partita.partitioner.assign.cuts import Cut
from tests.draws import examples
from tests.plans import kinds, plans
from tests.properties.results import assert_same
from tests.truth.interleaved import InterleavedReplica, draw_batch, on_one_machine, play, whole

Array = npt.NDArray[Any]
Tensors = Mapping[str, torch.Tensor]

SLOW_DRAWS = settings(
    max_examples=examples(4),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.slow
@SLOW_DRAWS
@given(
    plan=plans(precision="float64", shared=True, tied=True, max_layers=3, micro_batches=2),
    seed=st.integers(0, 1 << 30),
)
def test_any_network_agrees_within_rounding(plan: Plan, seed: int) -> None:
    assert plan.graph.tied
    assert_same(play(plan, seed=seed), play(on_one_machine(plan), seed=0), tolerance=1e-11)


@pytest.mark.slow
@settings(parent=SLOW_DRAWS, max_examples=examples(2))
@given(
    plan=plans(precision="float64", shared=True, tied=True, tiles=True, max_layers=3),
    seed=st.integers(0, 1 << 30),
)
def test_pictures_in_tiles_agree_within_rounding(plan: Plan, seed: int) -> None:
    assert_same(play(plan, seed=seed), play(whole(plan), seed=0), tolerance=1e-11)


@pytest.mark.slow
@SLOW_DRAWS
@given(
    plan=plans(shared=True, tied=True, max_layers=3, micro_batches=2),
    kind=kinds,
    seed=st.integers(0, 1 << 30),
)
def test_every_kind_of_step_updates_the_one_parameter(plan: Plan, kind: StepKind, seed: int) -> None:
    """In two steps, messages are those of the plan, and parameters those of the whole network."""
    parameters = initialise(plan.graph.parameters.values(), 7, dtype=plan.precision)
    batch, found = draw_batch(plan.graph, plan.batch, 11), []
    for each in (plan, on_one_machine(plan)):
        replica = InterleavedReplica(
            each, parameters, seed=seed, kind=kind, optimizer=Adagrad(0.01), keep=each.kept
        )
        planned = sorted(
            (str(m.buffer), m.rows, m.source, m.destination, m.n_bytes) for m in each.messages_for(kind)
        )
        for number in range(2):
            found.append(replica.step(batch, number=number))
            assert sorted(found[-1].sent) == planned
    for name in parameters:
        ours, theirs = found[1].parameters[name], found[3].parameters[name]
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-3, err_msg=f"{name}, seed {seed}")


@pytest.mark.slow
@settings(parent=SLOW_DRAWS, max_examples=examples(2))
@given(
    plan=plans(shared=True, tied=True, max_layers=3),
    first=st.integers(0, 1 << 30),
    second=st.integers(0, 1 << 30),
)
def test_the_order_of_events_changes_no_bit(plan: Plan, first: int, second: int) -> None:
    assert_same(play(plan, seed=first), play(plan, seed=second), tolerance=0.0)


def language(axis: int, *, regulariser: L2 | None = L2(0.05), sparse: bool = False) -> Network:  # noqa: B008
    """Scores of words by the rows of the table in which they are looked up."""
    net = Network("language")
    table = Embedding(9, 4, regulariser=regulariser, sparse=sparse, name="table")
    hidden = Linear(4, activation="tanh", name="hidden")(table(net.input("words", shape=6, classes=9)))
    found = Permute((1, 0))(hidden) if axis == 0 else hidden
    scores = Linear(9, weight=table.weight, axis=axis, name="scores")(found)
    net.loss = HalfSquaredError()(
        Flatten()(Permute((1, 0))(scores) if axis == 0 else scores), net.target("y")
    )
    return net


def language_in_torch(batch: Tensors, p: Tensors) -> torch.Tensor:
    table = p["table.weight"]
    hidden = torch.tanh(table[batch["words"]] @ p["hidden.weight"].T + p["hidden.bias"])
    scores = (hidden @ table.T + p["scores.bias"]).flatten(1)
    return (scores - batch["y"]).square().sum() / 2 / len(scores) + 0.05 * table.square().sum()


def sparse_in_torch(batch: Tensors, p: Tensors) -> torch.Tensor:
    return language_in_torch(batch, p) - 0.05 * p["table.weight"].square().sum()


def thrice() -> Network:
    net = Network("thrice")
    dense = Dense(8, activation="tanh", name="dense")
    last = dense(dense(dense(net.input("x", shape=8))))
    net.loss = HalfSquaredError()(Dense(5, name="scores")(last), net.target("y"))
    return net


def thrice_in_torch(batch: Tensors, p: Tensors) -> torch.Tensor:
    x = batch["x"]
    for _ in range(3):
        x = torch.tanh(x @ p["dense.weight"].T + p["dense.bias"])
    scores = x @ p["scores.weight"].T + p["scores.bias"]
    return (scores - batch["y"]).square().sum() / 2 / len(scores)


APART: dict[str, Cut] = {"dense": Whole(2), "dense_1": Whole(0), "dense_2": Whole(1)}
UNLIKE: dict[str, Cut] = {"dense": RowSplit((1, 0)), "dense_1": RowSplit((0, 1), (3, 5)), "dense_2": Whole(1)}
BY_INPUTS: dict[str, Cut] = {"dense": InputSplit(2), "dense_1": InputSplit(3), "dense_2": RowSplit((1, 2))}
ALIKE: dict[str, Cut] = {name: RowSplit(3) for name in ("dense", "dense_1", "dense_2")}
MORE: list[tuple[Any, Any, int, dict[str, Cut]]] = [
    *((lambda: language(-1), language_in_torch, machines, {}) for machines in (1, 2, 4, 5, 6)),
    *((lambda: language(0), language_in_torch, machines, {}) for machines in (1, 2, 4, 5, 6)),
    *((thrice, thrice_in_torch, machines, {}) for machines in range(1, 7)),
]
CASES = [
    *((lambda axis=axis: language(axis), language_in_torch, 3, {}) for axis in (-1, 0)),
    *(
        (lambda: language(-1, regulariser=None, sparse=True), sparse_in_torch, machines, {})
        for machines in (1, 3)
    ),
    *((thrice, thrice_in_torch, 3, cuts) for cuts in (APART, UNLIKE, BY_INPUTS, ALIKE)),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE),
]


@pytest.mark.parametrize(("declare", "truth", "machines", "cuts"), CASES)
def test_gradients_of_all_uses_add_up(declare: Any, truth: Any, machines: int, cuts: dict[str, Cut]) -> None:
    net = declare()
    cluster = Cluster.local(machines=machines)
    plan = partition(
        net, cluster, batch=4, cuts=cuts, precision="float64", strategy="balanced", micro_batches=2
    )
    parameters = initialise(plan.graph.parameters.values(), 7, dtype="float64")
    batch = draw_batch(plan.graph, plan.batch, 11)
    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in parameters.items()}
    truth({name: torch.tensor(array) for name, array in batch.items()}, leaves).backward()
    found = InterleavedReplica(plan, parameters, seed=machines).step(batch).gradients
    assert found.keys() == leaves.keys()
    for name, leaf in leaves.items():
        np.testing.assert_allclose(found[name], leaf.grad, rtol=0, atol=1e-12, err_msg=name)


def test_rows_that_are_cut_alike_send_no_weights() -> None:
    """Nothing but the three calls of one layer, each cut into the same rows: every machine has its own."""
    plan = partition(thrice(), Cluster.local(machines=3), batch=4, cuts=ALIKE, strategy="balanced")
    assert not any(message.is_of_weights for message in plan.messages)
    assert [plan.n_parameters(m) for m in range(3)] != [plan.graph.n_parameters, 0, 0]
    apart = partition(thrice(), Cluster.local(machines=3), batch=4, cuts=APART, strategy="balanced")
    sent = {(m.source, m.destination, m.n_bytes) for m in apart.messages if m.is_of_weights}
    assert sent == {(a, b, 4 * n) for n in (64, 8) for a, b in ((2, 0), (2, 1), (0, 2), (1, 2))}


@pytest.mark.parametrize("kind", [StepKind(), StepKind(gradients="whole")], ids=["blocks", "whole"])
def test_a_tied_table_with_sparse_gradients_learns_as_with_whole_ones(kind: StepKind) -> None:
    """The scores move all rows of the table, so that there is no step with few of them."""
    found = []
    for sparse in (False, True):
        net = language(-1, regulariser=None, sparse=sparse)
        plan = partition(net, Cluster.local(machines=2), batch=4, precision="float64", strategy="balanced")
        parameters = initialise(plan.graph.parameters.values(), 7, dtype="float64")
        replica = InterleavedReplica(plan, parameters, seed=1, kind=kind, optimizer=Adagrad(0.05))
        batch = draw_batch(plan.graph, plan.batch, 11)
        found.append([replica.step(batch, number=number) for number in range(3)][-1].parameters)
    for name, array in found[0].items():
        assert array.tobytes() == found[1][name].tobytes(), name


@pytest.mark.parametrize("machines", [1, 3])
@pytest.mark.parametrize("declare", [lambda: language(-1), thrice], ids=["language", "thrice"])
def test_in_bfloat16_they_come_near_float64(declare: Any, machines: int) -> None:
    """Each use rounds its own; the sum of the gradients is that of the masters, in float32."""
    near, exact = (
        partition(declare(), Cluster.local(machines=n), batch=4, precision=precision, strategy="balanced")
        for n, precision in ((machines, "bfloat16"), (1, "float64"))
    )
    parameters = initialise(near.graph.parameters.values(), 7, dtype="float32")
    batch = draw_batch(near.graph, near.batch, 11)
    found, expected = (InterleavedReplica(plan, parameters, seed=1).step(batch) for plan in (near, exact))
    assert found.gradients.keys() == expected.gradients.keys()
    for name, gradient in expected.gradients.items():
        most = float(np.abs(gradient).max())
        np.testing.assert_allclose(found.gradients[name], gradient, rtol=0, atol=0.03 * most, err_msg=name)
