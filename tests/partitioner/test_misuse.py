"""Invalid arguments of `partition` and clusters, and the one sentence of each error."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from partita.layers import Dense, Full, HalfSquaredError, Network, node, per_edge
from partita.partitioner import Cluster, Link, Machine, Plan, RowSplit, Whole
from partita.partitioner import partition as strict

partition: Any = strict
cluster: Any = Cluster
machine: Any = Machine
link: Any = Link
pieces: Any = RowSplit
whole: Any = Whole
LOCAL = Cluster.local(2)


def network() -> Network:
    net = Network("n")
    scores = Dense(10, name="scores")(net.input("x", shape=4))
    net.loss = HalfSquaredError(name="loss")(scores, net.target("y"))
    return net


def cut(given: Any) -> Plan:
    plan: Plan = partition(network(), LOCAL, batch=4, cuts={"scores": given})
    return plan


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (lambda: partition(network(), LOCAL, batch=1.5), "the number of examples in a batch is 1.5; write"),
        (lambda: partition(network(), LOCAL, batch=True), "the number of examples in a batch is True; write"),
        (lambda: partition(network(), 2, batch=4), "the cluster is 2; write for example Cluster.local(2)"),
        (lambda: partition(network, LOCAL, batch=4), "the network to cut is network; call it, network()"),
        (lambda: partition("n", LOCAL, batch=4), "the network to cut is 'n'; give a Network"),
        (
            lambda: partition(network(), LOCAL, batch=4, cuts=[RowSplit(2)]),
            "the cuts are [RowSplit(machines=2, sizes=None, halo=0)]; name their layers, for example {",
        ),
        (lambda: partition(network(), LOCAL, batch=4, cuts=[]), "the cuts are []; name their layers"),
        (
            lambda: cut(pieces(2, sizes=(4.0, 6.0))),
            "Dense 'scores' has 10 rows for 2 machines, but the sizes are (4.0",
        ),
        (
            lambda: cut(pieces(2, sizes=5)),
            "Dense 'scores' has 10 rows for 2 machines, but the sizes are 5; give",
        ),
        (lambda: cut(pieces("local0")), "Dense 'scores': the number of machines is 'local0'; write"),
        (lambda: cut(pieces(2.0)), "Dense 'scores': the number of machines is 2.0; write"),
        (lambda: cut(pieces(-1)), "Dense 'scores': the number of machines is -1; write"),
        (lambda: cut(pieces(("a", "b"))), "Dense 'scores': the machines are ('a', 'b'); write"),
        (lambda: cut(whole("a")), "Dense 'scores' is put on machine 'a'; write"),
        (lambda: cut(whole(True)), "Dense 'scores' is put on machine True; write"),
        (lambda: cluster.local(2.0), "the number of machines is 2.0; write"),
        (lambda: cluster.local(2, threads=1.5), "machine 'local0': the number of threads is 1.5; write"),
        (lambda: cluster(Machine("a")), "the machines of a cluster are Machine(name='a'"),
        (lambda: cluster(("a", "b")), "the machines of a cluster are ('a', 'b'); write a tuple"),
        (
            lambda: cluster((Machine("a"), Machine("a"))),
            "the machines of a cluster are named a, a; give each",
        ),
        (lambda: cluster((Machine("a"),), 1e9), "the link of a cluster is 1000000000.0; write"),
        (lambda: machine(""), "'' cannot name a machine; write"),
        (lambda: machine("a", flops_per_s="fast"), "machine 'a': the number of flop/s is 'fast'; write"),
        (lambda: machine("a", memory_bytes=1e9), "machine 'a': the memory in bytes is 1000000000.0; write"),
        (lambda: machine("a", device="gpu"), "machine 'a': the device is 'gpu'; write 'cpu', or for example"),
        (
            lambda: machine("a", device="cuda"),
            "machine 'a': the device is 'cuda'; write 'cpu', or for example",
        ),
        (
            lambda: machine("a", device=0),
            "machine 'a': the device is 0; write 'cpu', or for example 'cuda:0'",
        ),
        (lambda: link(-1.0), "the latency of a link is -1.0; write a finite number of at least zero"),
        (lambda: link(float("nan")), "the latency of a link is nan; write"),
        (lambda: link(0.0, 0), "the bytes/s of a link are 0; write a finite number of more than zero"),
    ],
)
def test_mistakes_are_refused(declare: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(sentence)):
        declare()


def test_numbers_of_numpy_and_lists_are_as_good() -> None:
    plan = partition(network(), Cluster.local(np.int64(2)), batch=np.int64(4))  # type: ignore[arg-type]
    assert plan == strict(network(), LOCAL, batch=4)
    assert type(plan.batch) is int
    assert cut(pieces([0, 1], sizes=[np.int64(4), 6])).pieces == cut(RowSplit((0, 1), sizes=(4, 6))).pieces
    assert cluster([Machine("a")]) == Cluster((Machine("a"),))


def with_a_node(*, with_loss: bool) -> Network:
    @node(Full(), weight=per_edge())
    def weigh(incoming: Any, weight: Any) -> Any:
        return (weight * incoming).sum()

    net = Network("n")
    scores = weigh(3, name="mine")(net.input("x", shape=4))
    if with_loss:
        net.loss = HalfSquaredError()(scores, net.target("y"))
    return net


def test_a_node_without_a_backward_function_has_a_plan_under_a_loss() -> None:
    plan = strict(with_a_node(with_loss=True), LOCAL, batch=4)
    assert "mine" in plan.graph.needs_gradient


def test_it_may_still_predict() -> None:
    plan = strict(with_a_node(with_loss=False), LOCAL, batch=4)
    assert plan.for_prediction().programs == plan.programs
