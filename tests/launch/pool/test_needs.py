"""What the hosts of a run need, by its plan: resources, and the workers that its machines stand for."""

from __future__ import annotations

from partita.engine.launch.pool.needs import needs_of, preferred_workers
from partita.engine.protocol.names import Topology
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Between, Cluster, Link, Machine, Plan, partition

FAR = Link(latency_s=1e-2)


def plan_on(cluster: Cluster) -> Plan:
    net = Network("small")
    net.loss = SoftmaxCrossEntropy()(Dense(8)(net.input("x", shape=4)), net.target("y"))
    return partition(net, cluster, batch=4, strategy="balanced")


def test_the_first_replica_goes_where_the_plan_says_and_others_if_they_can() -> None:
    cluster = Cluster((Machine("a", worker="a", threads=2), Machine("b", worker="b")))
    needs = {need.host: need for need in needs_of(plan_on(cluster), Topology(2, 2, 1))}
    assert needs["part 0.0"].workers == ("a", "b") and needs["part 0.0"].strict
    assert needs["part 1.1"].workers == ("b", "a") and not needs["part 1.1"].strict
    assert needs["part 0.0"].resources.cpu == 2 and needs["part 0.0"].resources.memory > 0
    assert needs["shard 0"].workers == () and not needs["shard 0"].strict


def test_a_backup_needs_what_its_shard_needs() -> None:
    needs = {
        need.host: need for need in needs_of(plan_on(Cluster.local(1)), Topology(1, 1, 2, replicated=True))
    }
    assert needs["backup 1"].resources == needs["shard 1"].resources and needs["backup 1"].spread


def test_machines_that_stand_for_no_worker_go_anywhere() -> None:
    needs = needs_of(plan_on(Cluster.local(2)), Topology(1, 2, 0))
    assert all(not need.workers and not need.strict for need in needs)


def test_workers_of_the_same_kind_are_preferred_and_then_near_ones() -> None:
    machines = (
        Machine("a", worker="a"),
        Machine("far", worker="far"),
        Machine("near", worker="near"),
        Machine("other", worker="other", speed=2.0),
    )
    cluster = Cluster(machines, Link(), (Between("a", "far", FAR),))
    assert preferred_workers(cluster, 0) == ("a", "near", "far", "other")
    assert preferred_workers(cluster, 3) == ("other", "a", "far", "near")
