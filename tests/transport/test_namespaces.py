"""Hosts with addresses of their own, on links between network namespaces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks._namespaces import GBIT, network, why_not
from partita.engine import Session
from partita.engine.launch import Placement, ProcessLauncher
from partita.layers import Dense, HalfSquaredError, Network
from partita.partitioner import Cluster, partition


def session_loss(**hosts: object) -> float:
    net = Network("far")
    hidden = Dense(64, activation="sigmoid", name="hidden")(net.input("x", shape=(64,)))
    net.loss = HalfSquaredError(name="loss")(Dense(64, name="out")(hidden), net.target("y"))
    plan = partition(net, Cluster.local(machines=2), batch=128, strategy="balanced")
    draw = np.random.default_rng(0)
    batch = {"x": draw.normal(size=(128, 64)), "y": draw.normal(size=(128, 64))}
    with Session(plan, 0, train=True, **hosts) as session:  # type: ignore[arg-type]
        first = session.step(batch)
        assert sum(sent.messages for sent in first.sent) > 0
        return session.step(None).loss


@pytest.mark.slow
@pytest.mark.netns
def test_hosts_in_namespaces_compute_the_same() -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with network(2, bits_per_s=GBIT) as net:
        # Memory cannot be shared between them, whatever a label says: the sockets carry everything then.
        places = {n: replace(place, machine="one") for n, place in enumerate(net.places)}
        apart = session_loss(hosts="processes", listen=net.listen, places=places)
    assert apart == session_loss(hosts="threads")


def test_a_coordinator_that_far_hosts_cannot_reach_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'part 0\.0' has the address 198\.18\.0\.2, from which"):
        ProcessLauncher(places={"part 0.0": Placement(address="198.18.0.2")})


def test_other_addresses_are_for_hosts_that_are_placed() -> None:
    with pytest.raises(ValueError, match="no endpoint for hosts that are all on this machine"):
        ProcessLauncher(listen="tcp://198.18.0.1:*")


@pytest.mark.parametrize("address", ["", "0.0.0.0", "a b", "10.0.0.1:5"])
def test_a_place_needs_an_address_that_others_reach(address: str) -> None:
    with pytest.raises(ValueError, match="is not an endpoint"):
        Placement(address=address)


def test_only_processes_have_addresses() -> None:
    with pytest.raises(ValueError, match="only processes have addresses"):
        session_loss(hosts="threads", listen="tcp://127.0.0.1:*")
