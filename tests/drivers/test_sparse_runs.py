"""Whole runs with a sparse table: the bits of whole gradients, in every durability; who is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from partita.engine import Adagrad, Adam, AllReduce, Downpour, train
from partita.layers import Dense, Embedding, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, RowSplit, partition

DRAW = np.random.default_rng(0)
DATA = {"words": DRAW.integers(0, 30, (256, 6)), "label": DRAW.integers(0, 4, 256)}


def plan_of(*, sparse: bool, machines: int = 1) -> Plan:
    net = Network("words")
    words = net.input("words", shape=6, classes=50)
    table = Embedding(50, 3, sparse=sparse, padding_idx=3, name="table")(words)
    net.loss = SoftmaxCrossEntropy()(Dense(4, name="scores")(table), net.target("label"))
    return partition(net, Cluster.local(machines), batch=16, cuts={"table": RowSplit(machines)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "machines"),
    [
        ({"shards": 3}, 1),
        ({"shards": 2, "push_every": 3}, 1),
        ({"shards": 2, "durability": "log"}, 1),
        ({"shards": 2, "durability": "replicated"}, 1),
        ({"shards": 2}, 2),
    ],
    ids=str,
)
def test_one_replica_of_downpour(settings: dict[str, Any], machines: int) -> None:
    driver = Downpour(optimizer=Adagrad(0.1), **settings)
    dense, sparse = (
        train(plan_of(sparse=one, machines=machines), DATA, driver=driver, epochs=2, show="nothing")
        for one in (False, True)
    )
    for name, expected in dense.parameters.items():
        assert sparse.parameters[name].tobytes() == expected.tobytes(), name


@pytest.mark.slow
def test_replicas_that_reduce_have_whole_gradients() -> None:
    driver = AllReduce(replicas=2, optimizer=Adam(0.1))
    dense, sparse = (
        train(plan_of(sparse=one), DATA, driver=driver, epochs=1, show="nothing") for one in (False, True)
    )
    for name, expected in dense.parameters.items():
        assert sparse.parameters[name].tobytes() == expected.tobytes(), name


def test_downpour_refuses_an_optimizer_that_changes_untouched_rows() -> None:
    for optimizer in (Adam(0.1), Adagrad(0.1, weight_decay=0.1)):
        with pytest.raises(
            ValueError, match=r"'table.weight' is sparse, and Ada.* changes rows that have no"
        ):
            train(plan_of(sparse=True), DATA, driver=Downpour(optimizer=optimizer), epochs=1, show="nothing")
