"""Parameters that several layers use, in whole runs: one entry, one state of the optimizer, for any cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.engine import LBFGS, SGD, Adagrad, Adam, AllReduce, Downpour, Run, Sandblaster, train
from partita.layers import L2, Dense, Embedding, Flatten, Linear, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, RowSplit, Whole, partition

DRAW = np.random.default_rng(5)
DATA = {"words": DRAW.integers(0, 9, (40, 6)), "y": DRAW.integers(0, 4, 40)}
APART = {"table": Whole(0), "scores": Whole(1)}
ALIKE = {"table": RowSplit(2), "scores": RowSplit(2)}


def network(**settings: Any) -> Network:
    net = Network("language")
    table = Embedding(9, 4, name="table", **settings)
    hidden = Linear(4, activation="tanh", name="hidden")(table(net.input("words", shape=6, classes=9)))
    scores = Flatten()(Linear(9, weight=table.weight, name="scores")(hidden))
    net.loss = SoftmaxCrossEntropy()(Dense(4, name="last")(scores), net.target("y"))
    return net


def trained(cuts: Any, driver: Any, *, net: Network | None = None, **settings: Any) -> Run:
    cluster = Cluster.local(machines=2 if cuts else 1)
    plan = partition(net or network(regulariser=L2(0.01)), cluster, batch=8, cuts=cuts, precision="float64")
    if not isinstance(driver, Sandblaster):
        settings.setdefault("epochs", 2)
    return train(plan, DATA, driver=driver, seed=1, show="nothing", **settings)


def same(one: Run, other: Run) -> None:
    assert list(one.parameters) == list(other.parameters)
    for name, values in one.parameters.items():
        np.testing.assert_allclose(other.parameters[name], values, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [APART, ALIKE], ids=["apart", "alike"])
@pytest.mark.parametrize(
    "driver",
    [
        AllReduce(optimizer=Adam(0.01), replicas=2),
        AllReduce(optimizer=SGD(0.1, clip_norm=0.5)),
        Downpour(optimizer=Adagrad(0.1), shards=2),
        Sandblaster(LBFGS(max_iterations=4), shards=2),
    ],
    ids=["joined", "clipped", "downpour", "sandblaster"],
)
def test_runs_of_any_cut_are_one_run(driver: Any, cuts: Any, on_threads: object) -> None:
    """Norms count the parameter once, and so does its regulariser."""
    one, other = trained({}, driver), trained(cuts, driver)
    assert "scores.weight" not in one.parameters and one.parameters["table.weight"].shape == (9, 4)
    same(one, other)


def test_a_run_goes_on_where_it_ended(tmp_path: Path, on_threads: object) -> None:
    """The state of the one parameter is stored and read once."""
    driver = AllReduce(optimizer=Adam(0.01))
    trained(APART, driver, epochs=1, checkpoints=tmp_path)
    again = trained(APART, driver, epochs=2, checkpoints=tmp_path, resume=True)
    same(trained(APART, driver, epochs=2), again)
    np.savez(tmp_path / "parameters.npz", **again.parameters)
    with np.load(tmp_path / "parameters.npz") as kept:
        assert [name for name in kept.files if name.startswith(("table", "scores"))] == [
            "table.weight",
            "scores.bias",
        ]


@pytest.mark.slow
def test_a_table_that_does_not_learn_keeps_its_values_in_all_uses(on_threads: object) -> None:
    net = network(trainable=False, initialiser="ones")
    run = trained(APART, AllReduce(optimizer=SGD(0.5, weight_decay=0.1)), net=net)
    np.testing.assert_array_equal(run.parameters["table.weight"], np.ones((9, 4)))
    assert np.abs(run.parameters["scores.bias"]).max() > 0


@pytest.mark.parametrize("cuts", [{}, pytest.param(APART, marks=pytest.mark.slow)], ids=["whole", "apart"])
def test_a_sparse_table_that_scores_use_too_learns_as_with_whole_gradients(
    cuts: Any, on_threads: object
) -> None:
    """The scores' gradient has all rows, so parts push all of them."""
    driver = Downpour(optimizer=Adagrad(0.1), shards=2)
    dense, sparse = (trained(cuts, driver, net=network(sparse=one), epochs=1) for one in (False, True))
    for name, expected in dense.parameters.items():
        assert sparse.parameters[name].tobytes() == expected.tobytes(), name
