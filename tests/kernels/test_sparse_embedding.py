"""Embedding(sparse=True): the bits of a dense gradient, whatever the cut, from the rows of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from partita.engine import SGD, Adagrad, Adam, Momentum, Optimizer
from partita.engine.numerics import RowGradient
from partita.engine.parameters import initialise
from partita.layers import L2, Add, Dense, Embedding, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, RowSplit, Whole, partition
from partita.partitioner.ir.step_kind import StepKind
from tests.truth.interleaved import InterleavedReplica

CLASSES, PADDING = 50, 3
CUTS = [(1, True), (2, False), (3, True)]


def plan_of(
    *, sparse: bool, machines: int = 1, cut: bool = True, precision: str = "float64", batch: int = 4
) -> Plan:
    net = Network("words")
    words = net.input("words", shape=6, classes=CLASSES)
    table = Embedding(CLASSES, 3, padding_idx=PADDING, sparse=sparse, name="table")(words)
    net.loss = SoftmaxCrossEntropy()(Dense(4, name="scores")(table), net.target("label"))
    rows = RowSplit(machines) if cut else Whole(machines - 1)
    cuts = {"table": rows, "scores": RowSplit(min(machines, 4))}
    return partition(net, Cluster.local(machines), batch=batch, precision=precision, cuts=cuts)


def batches(steps: int, batch: int) -> list[dict[str, np.ndarray]]:
    """Repeated numbers, padding, a batch of padding alone, and one number in all places."""
    draw = np.random.default_rng(3)
    found = [draw.integers(0, 9, (batch, 6)) for _ in range(steps)]
    found[1][:], found[2][:] = PADDING, 7
    return [{"words": one, "label": draw.integers(0, 4, (batch, 1))} for one in found]


def trained(
    plan: Plan,
    optimizer: Optimizer,
    *,
    steps: int = 5,
    overlap: int = 1,
    first: dict[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    parameters = first or initialise(plan.graph.parameters.values(), 7, dtype="float64")
    kind = StepKind(overlap=overlap, norms=optimizer.needs_norms)
    replica = InterleavedReplica(plan, parameters, seed=1, kind=kind, optimizer=optimizer)
    for number, batch in enumerate(batches(steps, plan.batch * overlap)):
        found = replica.step(batch, number=number)
    return found.parameters


@pytest.mark.parametrize(
    ("optimizer", "machines", "cut"),
    [
        *((optimizer, *cut) for optimizer in (SGD(0.1), Adagrad(0.1)) for cut in CUTS),
        (Adagrad(0.1), 6, True),
        *((optimizer, 1, True) for optimizer in (Adagrad(0.1, clip_norm=0.1), Adam(0.1), Momentum(0.1))),
    ],
    ids=str,
)
def test_training_has_the_bits_of_dense_gradients(optimizer: Optimizer, machines: int, cut: bool) -> None:
    dense, sparse = (
        trained(plan_of(sparse=sparse, machines=machines, cut=cut), optimizer) for sparse in (False, True)
    )
    for name, expected in dense.items():
        assert sparse[name].tobytes() == expected.tobytes(), name


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_micro_batches_and_other_precisions_have_them_too(precision: str) -> None:
    dense, sparse = (
        trained(plan_of(sparse=one, machines=2, cut=False, precision=precision), Adagrad(0.1), overlap=2)
        for one in (False, True)
    )
    for name, expected in dense.items():
        assert sparse[name].tobytes() == expected.tobytes(), name


def test_equals_pytorch() -> None:
    """Adagrad over five steps, in float64."""
    plan = plan_of(sparse=True)
    first = initialise(plan.graph.parameters.values(), 7, dtype="float64")
    table = torch.nn.Embedding(CLASSES, 3, padding_idx=PADDING, dtype=torch.float64)
    scores = torch.nn.Linear(18, 4, dtype=torch.float64)
    table.weight.data = torch.from_numpy(first["table.weight"].copy())
    table.weight.data[PADDING] = 0  # PyTorch's begins at zero; ours gives zero whatever the row
    scores.weight.data = torch.from_numpy(first["scores.weight"].copy())
    scores.bias.data = torch.from_numpy(first["scores.bias"].copy())
    learnt = [*table.parameters(), *scores.parameters()]
    squares = [torch.zeros_like(one) for one in learnt]
    for batch in batches(5, plan.batch):
        found = scores(table(torch.from_numpy(batch["words"])).flatten(1))
        loss = torch.nn.functional.cross_entropy(found, torch.from_numpy(batch["label"][:, 0]))
        gradients = torch.autograd.grad(loss, learnt)
        for one, gradient, total in zip(learnt, gradients, squares, strict=True):
            total += gradient**2
            one.data -= 0.1 * gradient / (total.sqrt() + 1e-10)
    ours = trained(plan, Adagrad(0.1))
    touched = np.arange(CLASSES) != PADDING
    expected = table.weight.detach().numpy()
    np.testing.assert_allclose(ours["table.weight"][touched], expected[touched], rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(ours["table.weight"][PADDING], first["table.weight"][PADDING])
    np.testing.assert_array_equal(ours["table.weight"][9:], first["table.weight"][9:])


def test_a_table_cut_by_its_rows_is_one_table() -> None:
    """Three machines have a share each; a class of no share of a machine is zero there."""
    whole, shares = plan_of(sparse=False), [(0, 5), (5, 8), (8, CLASSES)]
    net = Network("shares")
    words = net.input("words", shape=6, classes=CLASSES)
    settings: dict[str, Any] = {"padding_idx": PADDING, "sparse": True}
    parts = [Embedding(CLASSES, 3, rows=rows, name=f"part{rows[0]}", **settings)(words) for rows in shares]
    net.loss = SoftmaxCrossEntropy()(Dense(4, name="scores")(Add()(*parts)), net.target("label"))
    cuts = {f"part{rows[0]}": Whole(n) for n, rows in enumerate(shares)}
    plan = partition(net, Cluster.local(3), batch=4, precision="float64", cuts=cuts)
    first = initialise(whole.graph.parameters.values(), 7, dtype="float64")
    cut = {f"part{start}.weight": first["table.weight"][start:stop] for start, stop in shares}
    expected = trained(whole, Adagrad(0.1), first=first)
    found = trained(plan, Adagrad(0.1), first={**first, **cut})
    table = np.concatenate([found[f"part{start}.weight"] for start, _ in shares])
    np.testing.assert_allclose(table, expected["table.weight"], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found["scores.weight"], expected["scores.weight"], rtol=1e-12, atol=1e-14)
    with pytest.raises(ValueError, match=r"rows is \(5, 51\); write the first class"):
        Embedding(CLASSES, 3, rows=(5, CLASSES + 1))


def test_a_sum_of_rows_is_that_of_tables() -> None:
    draw, total, sums = np.random.default_rng(1), np.zeros((9, 2), np.float32), RowGradient(2, np.float32)
    for rows in ([1, 4], [], [0, 4, 8], [0, 4, 8], [2]):
        values = draw.standard_normal((len(rows), 2)).astype(np.float32)
        total[rows] += values
        sums.add(np.array(rows, np.int64), values)
    found = np.zeros_like(total)
    found[sums.rows] = sums.values
    assert sums.rows.tolist() == [0, 1, 2, 4, 8] and found.tobytes() == total.tobytes()
    assert [rows.tolist() for rows, _ in (sums.between(1, 5), sums.between(5, 8))] == [[1, 2, 4], []]
    sums.remove(1, 5)
    assert sums.rows.tolist() == [0, 8]
    sums.add_table(total)
    assert sums.rows.tolist() == [0, 1, 2, 4, 8]


def test_optimizers_that_change_untouched_rows_say_so() -> None:
    assert SGD(0.1).supports_sparse and Adagrad(0.1).supports_sparse
    others = SGD(0.1, weight_decay=0.1), Adagrad(0.1, weight_decay=0.1), Adam(0.1), Momentum(0.1)
    assert not any(other.supports_sparse for other in others)


def test_a_regulariser_and_sparse_exclude_each_other() -> None:
    with pytest.raises(ValueError, match=r"sparse=True, and L1L2\(.*changes every row in every step"):
        Embedding(5, 2, sparse=True, regulariser=L2(0.1))
