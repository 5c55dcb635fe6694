"""The lower bound: no plan is below it, and where it is sharp it says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.layers import Dense, HalfSquaredError, LocallyConnected2D, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Costs, Link, Machine, Plan, partition
from partita.partitioner.predict.bound import Bound
from tests.plans import plans


@given(st.booleans().flatmap(lambda losses: plans(losses=losses, shared=True)))
def test_no_plan_is_below_it(plan: Plan) -> None:
    assert 0 < plan.lower_bound_s <= plan.predicted_step_s * (1 + 1e-9)


@given(plans(shared=True, max_machines=3))
def test_a_cluster_that_is_better_has_no_higher_bound(plan: Plan) -> None:
    machines = tuple(replace(m, flops_per_s=2 * m.flops_per_s) for m in plan.cluster.machines)
    more = (*machines, Machine("another", flops_per_s=1e9))
    better = Costs(plan.graph, replace(plan.cluster, machines=more), batch=plan.batch)
    bound = Bound(better)
    assert bound.work_s <= Bound(plan.costs).work_s * (1 + 1e-3)  # prices are found by rounds
    assert bound.chain_s <= Bound(plan.costs).chain_s * (1 + 1e-9)


def test_one_machine_reaches_it() -> None:
    net = Network("one")
    hidden = LocallyConnected2D(4, 3, name="hidden")(net.input("x", shape=(9, 9, 2)))
    net.loss = SoftmaxCrossEntropy()(Dense(10, name="scores")(hidden), net.target("y"))
    plan = partition(net, Cluster.local(1), batch=64)
    assert plan.lower_bound_s == pytest.approx(plan.predicted_step_s, rel=0.2)
    assert plan.lower_bound_s == Bound(plan.costs).alone_s + plan.cluster.machines[0].step_s


def test_work_is_divided_by_speed() -> None:
    net = Network("wide")
    states = Dense(3000, name="wide")(net.input("x", shape=3000))
    net.loss = HalfSquaredError(name="loss")(states, net.target("y"))
    alone = Bound(Costs(net.graph(), uneven(1), batch=256)).work_s
    shared = Bound(Costs(net.graph(), uneven(1, 2, 3), batch=256)).work_s
    assert shared == pytest.approx(alone / 6, rel=0.05)


def uneven(*speeds: float) -> Cluster:
    return Cluster(
        tuple(
            Machine(f"m{n}", flops_per_s=1e9 * speed, bytes_per_s=1e9 * speed)
            for n, speed in enumerate(speeds)
        )
    )


def test_a_slow_link_makes_one_machine_the_best_and_the_bound_knows() -> None:
    net = Network("small")
    states = net.input("x", shape=8)
    for n in range(3):
        states = Dense(8, name=f"layer{n}")(states)
    net.loss = HalfSquaredError(name="loss")(states, net.target("y"))
    machines = tuple(Machine(name) for name in "abc")
    plan = partition(net, Cluster(machines, Link(1.0, 1e3)), batch=4)
    assert not plan.messages
    bound = Bound(plan.costs)
    assert bound.apart_s > 2.0
    assert plan.lower_bound_s == bound.alone_s + machines[0].step_s
