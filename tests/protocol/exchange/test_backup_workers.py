"""A root that sums a step without its last members: who counts is decided once, and all get that result."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.protocol.events import Received, Refuse
from partita.engine.protocol.exchange import Numbers, Ring, Server, create_exchange
from partita.engine.protocol.replica_messages import ExchangeAck
from tests.draws import examples
from tests.protocol.exchange.network import Faults, Network
from tests.protocol.exchange.test_sums import CHUNK, SEEDS, faults_of


@settings(max_examples=examples(60))
@given(
    members=st.integers(1, 6),
    backup=st.integers(1, 4),
    length=st.integers(1, 40),
    mean=st.booleans(),
    faults=faults_of,
    seed=SEEDS,
)
def test_all_members_have_the_sum_of_those_that_counted(
    members: int, backup: int, length: int, mean: bool, faults: Faults, seed: int
) -> None:
    numbers = Numbers(length, 4, CHUNK)
    network = Network(Server(backup), [""] * members, numbers, random.Random(seed), faults, mean=mean)
    for _ in range(150):
        network.any_event()
        _no_member_is_two_behind(network)
    network.heal(lambda: network.all_have(max(network.bits, default=0)))
    assert network.bits
    for number, (bits, dropped) in network.bits.items():
        counted = [rank for rank in range(members) if rank not in dropped]
        assert len(counted) == max(min(2, members), members - backup) and 0 in counted
        total = network.contribution(0, number)
        for rank in counted[1:]:
            total += network.contribution(rank, number)
        total /= np.float32(len(counted) if mean else len(counted) / members)
        assert bits == total.tobytes()
    assert network.refused == []


def _no_member_is_two_behind(network: Network) -> None:
    done = [max(place.results, default=-1) for place in network.places]
    assert max(done) - min(done) <= 1 or len(network.places) == 1, done


def network_of_three() -> Network:
    """Three members, one of them a backup, which all have the result of exchange 0."""
    network = Network(Server(1), ["", "", ""], Numbers(4, 4, CHUNK), random.Random(0))
    for rank in range(3):
        network.begin(rank)
    network.heal(lambda: network.all_have(0), begins=False)
    while network.flights:
        network.deliver(network.flights.pop(0))
    return network


def test_a_late_member_is_dropped_and_goes_on() -> None:
    network = network_of_three()
    network.begin(0)
    network.begin(2)
    while network.flights:
        network.deliver(network.flights.pop(0))
    assert [1 in place.results for place in network.places] == [True, False, True]
    assert network.places[1].exchange.decided  # type: ignore[attr-defined]
    network.begin(1)
    assert network.bits[1][1] == (1,)
    assert network.places[1].results[1] == network.bits[1]
    messages = [flight for flight in network.flights if flight.payload is not None]
    assert messages == []  # what nobody would add is not sent


def test_the_next_decision_waits_for_the_late_member() -> None:
    network = network_of_three()
    for number in (1, 2):
        network.begin(0)
        network.begin(2)
        while network.flights:
            network.deliver(network.flights.pop(0))
        assert [number in network.places[rank].results for rank in (0, 2)] == [number == 1] * 2
    assert network.places[0].exchange.waits_for == ("part 1.0",)
    network.begin(1)
    while network.flights:
        network.deliver(network.flights.pop(0))
    assert [2 in place.results for place in network.places] == [True, False, True]


def test_a_lost_acknowledgement_is_asked_for() -> None:
    network = network_of_three()
    for rank in (0, 1, 2):
        network.begin(rank)
    while 1 not in network.places[1].results:
        network.deliver(network.flights.pop(0))
    network.flights = [flight for flight in network.flights if flight.payload is not None]
    network.heal(lambda: network.all_have(1), begins=False)
    network.flights.clear()  # every acknowledgement
    network.begin(0)
    network.begin(2)
    network.heal(lambda: 2 in network.places[2].results, begins=False)


def test_only_a_root_with_backup_workers_takes_acknowledgements() -> None:
    for algorithm, rank in ((Server(1), 1), (Ring(), 0)):
        network = Network(algorithm, ["", "", ""], Numbers(4, 4, CHUNK), random.Random(0))
        network.act(rank, network.places[rank].exchange.receive(_ack(), 0.0))
        assert [type(effect) for effect in network.refused] == [Refuse]


def _ack() -> Received:
    return Received("part 2.0", 0, ExchangeAck(0, 5, 0))


def test_backup_workers_need_a_whole_all_reduce() -> None:
    group = Network(Ring(), ["", ""], Numbers(4), random.Random(0)).places[0].exchange.group
    with pytest.raises(ValueError, match="set backup_workers=0"):
        create_exchange(Server(1), group, Numbers(4), phase="reduce-scatter")
    with pytest.raises(ValueError, match="give 0 or more"):
        Server(-1)
