"""A reduce-scatter and an all-gather that take turns: an optimizer whose state is sharded over members."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.protocol.events import Span
from partita.engine.protocol.exchange import (
    Algorithm,
    Exchange,
    ExchangeDone,
    Group,
    Numbers,
    Ring,
    bytes_sent,
    create_exchange,
)
from tests.draws import examples
from tests.protocol.exchange.network import RETRY_S, Faults, Network
from tests.protocol.exchange.references import reference
from tests.protocol.exchange.test_sums import ALGORITHMS, CHUNK, SEEDS, faults_of, lengths, machines_of

RATE = np.float32(0.125)


class Sharded(Network):
    """Members that sum gradients, update the parameters that they own, and collect the others'.

    Each exchange has one vector, which is written again without waiting for anybody: the gradient when the
    next one is computed, the own parameters when their next sum is there.
    """

    def __init__(self, algorithm: Algorithm, machines: Sequence[str], numbers: Numbers, *rest: Any) -> None:
        super().__init__(algorithm, machines, numbers, *rest, phase="reduce-scatter")
        self.gathers = [self.gather(rank) for rank in range(len(machines))]
        self.whole = Span("parameters", 0, numbers.length)
        for place in self.places:
            place.vectors["parameters"] = np.zeros(numbers.length, np.float32)

    def gather(self, rank: int) -> Exchange:
        group = Group(tuple(self.members), self.members[rank].name, self.view, exchange=6)
        return create_exchange(self.algorithm, group, self.numbers, phase="all-gather", retry_s=RETRY_S)

    def machines_of(self, rank: int) -> list[Exchange]:
        return [self.places[rank].exchange, self.gathers[rank]]

    def begin(self, rank: int) -> None:
        place, scatter, gather = self.places[rank], *self.machines_of(rank)
        if scatter.next == gather.next:
            place.vectors["gradient"] = self.contribution(rank, scatter.next)
            span = Span("gradient", 0, self.numbers.length)
            self.act(rank, scatter.begin(scatter.next, span, self.now))
            return
        for start, stop in scatter.owned:
            place.vectors["parameters"][start:stop] -= RATE * place.vectors["gradient"][start:stop]
        self.act(rank, gather.begin(gather.next, self.whole, self.now))

    def done(self, rank: int, done: ExchangeDone) -> None:
        if done.exchange == 6:
            self.keep(self.places[rank], done.number, (self.places[rank].vectors["parameters"].tobytes(), ()))


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@settings(max_examples=examples(60))
@given(machines=machines_of, length=lengths, faults=faults_of, seed=SEEDS)
def test_parameters_are_those_of_one_process(
    algorithm: Algorithm, machines: list[str], length: int, faults: Faults, seed: int
) -> None:
    network = Sharded(algorithm, machines, Numbers(length, 4, CHUNK), random.Random(seed), faults)
    for _ in range(200):
        network.any_event()
    last = max(network.bits, default=0) + 1
    network.heal(lambda: network.all_have(last))
    assert network.refused == []
    labels = network.places[0].exchange.group.machines
    parameters = np.zeros(length, np.float32)
    for number in range(last + 1):
        vectors = [network.contribution(rank, number) for rank in range(len(machines))]
        parameters -= RATE * reference(algorithm, vectors, labels)
        assert network.bits[number][0] == parameters.tobytes()


@given(members=st.integers(1, 6), length=lengths)
def test_the_halves_of_a_ring_send_what_the_whole_sends(members: int, length: int) -> None:
    numbers = Numbers(length, 4, CHUNK)
    network = Sharded(Ring(), [""] * members, numbers, random.Random(0))
    for _half in range(2):
        for rank in range(members):
            network.begin(rank)
        while network.flights:
            network.deliver(network.flights.pop(0))
    assert network.all_have(0)
    labels = network.places[0].exchange.group.machines
    for rank, place in enumerate(network.places):
        assert place.sent_bytes == bytes_sent(Ring(), rank, labels, numbers)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@given(machines=machines_of, length=lengths)
def test_every_number_has_one_owner(algorithm: Algorithm, machines: list[str], length: int) -> None:
    network = Sharded(algorithm, machines, Numbers(length, 4, CHUNK), random.Random(0))
    owned = sorted(span for place in network.places for span in place.exchange.owned)
    assert [number for start, stop in owned for number in range(start, stop)] == list(range(length))


@given(members=st.integers(1, 9), length=st.integers(0, 40))
def test_a_ring_gives_each_member_its_share(members: int, length: int) -> None:
    network = Sharded(Ring(), [""] * members, Numbers(length, 4, CHUNK), random.Random(0))
    for rank, place in enumerate(network.places):
        start, stop = rank * length // members, (rank + 1) * length // members
        assert place.exchange.owned == ([(start, stop)] if stop > start else [])


@pytest.mark.parametrize("kind", [Network, Sharded])
@settings(max_examples=examples(30))
@given(algorithm=st.sampled_from(ALGORITHMS), machines=machines_of, length=st.integers(0, 300), seed=SEEDS)
def test_no_member_waits_for_a_piece_that_another_one_holds_back(
    kind: type[Network], algorithm: Algorithm, machines: list[str], length: int, seed: int
) -> None:
    """Many more pieces than are begun ahead, and no time passes: nothing is ever asked for."""
    network = kind(algorithm, machines, Numbers(length, 4, 4), random.Random(seed))
    for _half in range(1 + (kind is Sharded)):
        for rank in network.rng.sample(range(len(machines)), len(machines)):
            network.begin(rank)
            for _ in range(min(len(network.flights), network.rng.randrange(20))):
                network.deliver(network.take())
        while network.flights:
            network.deliver(network.take())
    assert network.all_have(0)
    assert all(place.exchange.repeats == 0 for place in network.places)
