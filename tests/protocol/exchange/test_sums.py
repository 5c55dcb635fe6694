"""Every all-reduce has one result, to the bit, whatever happens to messages and to processes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.protocol.exchange import (
    Algorithm,
    Hierarchical,
    Numbers,
    Ring,
    Server,
    Tree,
    bytes_sent,
    messages_sent,
)
from tests.draws import examples
from tests.protocol.exchange.network import Faults, Network
from tests.protocol.exchange.references import reference

ALGORITHMS: tuple[Algorithm, ...] = (Ring(), Tree(), Hierarchical(), Server())
SEEDS = st.integers(0, 2**32 - 1)
CHUNK = 8  # bytes: two numbers

machines_of = st.lists(st.sampled_from(["", "red", "blue"]), min_size=1, max_size=7)
lengths = st.one_of(st.integers(0, 8), st.integers(9, 60))
faults_of = st.builds(
    Faults, drop=st.sampled_from([0.0, 0.1, 0.4]), repeat=st.sampled_from([0.0, 0.2]), reorder=st.booleans()
)


def result(network: Network, number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.frombuffer(network.bits[number][0], np.float32)


def expected(network: Network, number: int, *, mean: bool) -> np.ndarray[Any, np.dtype[np.float32]]:
    labels = [label or f"own {rank}" for rank, label in enumerate(network.machines)]
    vectors = [network.contribution(rank, number) for rank in range(len(labels))]
    total = reference(network.algorithm, vectors, labels)
    return total / np.float32(len(vectors)) if mean else total


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@settings(max_examples=examples(60))
@given(
    machines=machines_of,
    length=lengths,
    mean=st.booleans(),
    faults=faults_of,
    seed=SEEDS,
    restart=st.booleans(),
)
def test_the_sum_has_the_bits_of_its_order(
    algorithm: Algorithm,
    machines: list[str],
    length: int,
    mean: bool,
    faults: Faults,
    seed: int,
    restart: bool,
) -> None:
    numbers = Numbers(length, 4, CHUNK)
    network = Network(algorithm, machines, numbers, random.Random(seed), faults, mean=mean)
    for _ in range(120):
        network.any_event()
    if restart:
        network.change_view(network.rng.randrange(len(machines)))
        for _ in range(60):
            network.any_event()
    last = max(network.bits, default=0) + 1
    network.heal(lambda: network.all_have(last))
    for number in network.bits:
        assert result(network, number).tobytes() == expected(network, number, mean=mean).tobytes()
    assert network.refused == []


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@given(machines=machines_of, length=lengths, seed=SEEDS)
def test_bytes_and_messages_are_those_of_the_formulas(
    algorithm: Algorithm, machines: list[str], length: int, seed: int
) -> None:
    numbers = Numbers(length, 4, CHUNK)
    network = Network(algorithm, machines, numbers, random.Random(seed))
    for rank in network.rng.sample(range(len(machines)), len(machines)):
        network.begin(rank)
    network.heal(lambda: network.all_have(0), begins=False)
    labels = network.places[0].exchange.group.machines
    for rank, place in enumerate(network.places):
        assert place.sent_bytes == bytes_sent(algorithm, rank, labels, numbers)
        assert place.sent_messages == messages_sent(algorithm, rank, labels, numbers)
        assert place.exchange.repeats == 0


@given(members=st.integers(1, 9), share=st.integers(0, 12))
def test_a_ring_sends_twice_all_but_one_share(members: int, share: int) -> None:
    numbers = Numbers(members * share, 4, CHUNK)
    for rank in range(members):
        assert bytes_sent(Ring(), rank, [""] * members, numbers) == 2 * (members - 1) * share * 4


@given(
    machines=st.lists(st.sampled_from(["red", "blue", "green"]), min_size=1, max_size=9),
    share=st.integers(0, 9),
)
def test_one_copy_crosses_between_machines(machines: list[str], share: int) -> None:
    """A machine sends the others 2 (M - 1) / M of the vector, however many members it has."""
    places = len(set(machines))
    numbers = Numbers(places * share, 4, CHUNK)
    network = Network(Hierarchical(), machines, numbers, random.Random(1))
    for rank in range(len(machines)):
        network.begin(rank)
    crossed = dict.fromkeys(machines, 0)
    while network.flights:
        flight = network.flights[0]
        if machines[flight.sender] != machines[flight.to]:
            crossed[machines[flight.sender]] += len(flight.payload or b"")
        network.deliver(network.flights.pop(0))
    assert network.all_have(0)
    assert set(crossed.values()) == {2 * (places - 1) * share * 4}
