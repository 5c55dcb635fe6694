"""Members of an exchange on a network that delays, drops, repeats and reorders; their numbers are float32."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from partita.engine.protocol import decode, encode
from partita.engine.protocol.events import Received, Refuse, Send, Span, Tick
from partita.engine.protocol.exchange import (
    AddChunk,
    Algorithm,
    CopyChunk,
    Exchange,
    ExchangeDone,
    Group,
    Member,
    Numbers,
    create_exchange,
)
from partita.engine.protocol.replica_messages import FinalChunk, PartialChunk

Vector = npt.NDArray[np.float32]

RETRY_S = 1.0
BEFORE = 3
"""Numbers of each vector before the span of the exchange, and ..."""
BEHIND = 2
"""... behind it: nobody may touch them."""


@dataclass(frozen=True)
class Faults:
    """Rates of what happens to a message; the rest is delivered, in any order or in that of its sender."""

    drop: float = 0.0
    repeat: float = 0.0
    reorder: bool = False


@dataclass
class Place:
    """A member: its machine, and two vectors that take turns."""

    exchange: Exchange
    vectors: dict[str, Vector]
    results: dict[int, tuple[bytes, tuple[int, ...]]] = field(default_factory=dict)
    sent_bytes: int = 0
    sent_messages: int = 0
    requests: int = 0


@dataclass(frozen=True)
class Flight:
    """A message on its way, encoded."""

    sender: int
    to: int
    incarnation: int
    data: bytes
    payload: bytes | None


class Network:
    """N members that do exchange after exchange. Contributions follow from rank and number alone."""

    def __init__(
        self,
        algorithm: Algorithm,
        machines: Sequence[str],
        numbers: Numbers,
        rng: random.Random,
        faults: Faults = Faults(),
        **settings: Any,
    ) -> None:
        self.algorithm, self.numbers, self.rng, self.faults = algorithm, numbers, rng, faults
        self.machines, self.settings = machines, settings
        self.members = [Member(f"part {rank}.0", 0, label) for rank, label in enumerate(machines)]
        self.view, self.now = 0, 0.0
        self.flights: list[Flight] = []
        self.refused: list[Refuse] = []
        self.bits: dict[int, tuple[bytes, tuple[int, ...]]] = {}
        self.places = [Place(self.machine(rank, 0), {}) for rank in range(len(machines))]

    def machine(self, rank: int, first: int) -> Exchange:
        group = Group(tuple(self.members), self.members[rank].name, self.view, exchange=5)
        return create_exchange(
            self.algorithm, group, self.numbers, first=first, retry_s=RETRY_S, **self.settings
        )

    def contribution(self, rank: int, number: int) -> Vector:
        drawn = np.random.default_rng((rank, number)).standard_normal(self.numbers.length)
        return (drawn * 10.0 ** (rank % 5)).astype(np.float32)

    def machines_of(self, rank: int) -> list[Exchange]:
        return [self.places[rank].exchange]

    def idle(self) -> list[int]:
        """The members that can begin something."""
        return [
            rank
            for rank in range(len(self.places))
            if all(machine.under_way is None for machine in self.machines_of(rank))
        ]

    # What may happen.

    def begin(self, rank: int) -> None:
        """A member computes its next contribution, over what it no longer needs, and begins."""
        place = self.places[rank]
        number = place.exchange.next
        vector = np.full(BEFORE + self.numbers.length + BEHIND, 7.0, np.float32)
        vector[BEFORE : BEFORE + self.numbers.length] = self.contribution(rank, number)
        place.vectors[f"gradient {number % 2}"] = vector
        span = Span(f"gradient {number % 2}", BEFORE, BEFORE + self.numbers.length)
        self.act(rank, place.exchange.begin(number, span, self.now))

    def tick(self) -> None:
        self.now += RETRY_S * 1.01
        for rank in range(len(self.places)):
            for machine in self.machines_of(rank):
                self.act(rank, machine.receive(Tick(), self.now))

    def deliver(self, flight: Flight) -> None:
        message: Any = decode(flight.data)
        event = Received(self.members[flight.sender].name, flight.incarnation, message, flight.payload)
        (machine,) = (one for one in self.machines_of(flight.to) if one.group.exchange == message.exchange)
        self.act(flight.to, machine.receive(event, self.now))

    def any_event(self) -> None:
        """Something happens: a member begins, time passes, or a message arrives, is lost, or repeated."""
        idle = self.idle()
        choice = self.rng.random()
        if idle and (choice < 0.2 or not self.flights):
            self.begin(self.rng.choice(idle))
        elif choice < 0.25 or not self.flights:
            self.tick()
        else:
            self.pass_on(self.take())

    def take(self) -> Flight:
        index = self.rng.randrange(len(self.flights))
        if not self.faults.reorder:  # the oldest of its pair: a connection keeps the order
            pair = (self.flights[index].sender, self.flights[index].to)
            index = next(n for n, one in enumerate(self.flights) if (one.sender, one.to) == pair)
        return self.flights.pop(index)

    def pass_on(self, flight: Flight) -> None:
        choice = self.rng.random()
        if choice < self.faults.drop:
            return
        if choice < self.faults.drop + self.faults.repeat:
            self.flights.append(flight)
        self.deliver(flight)

    def heal(self, until: Callable[[], bool], *, begins: bool = True) -> None:
        """From now on every message arrives; raises if that does not bring the end about."""
        self.faults = Faults()
        for _ in range(50_000):
            if until():
                return
            idle = self.idle()
            if self.flights:
                self.deliver(self.take())
            elif begins and idle:
                self.begin(min(idle, key=lambda n: self.places[n].exchange.next))
            else:
                self.tick()
        raise AssertionError([(p.exchange.under_way, p.exchange.waits_for) for p in self.places])

    def change_view(self, restarted: int) -> None:
        """A member is a new process. All go on from the most advanced one's number, in a new view."""
        self.view += 1
        old = self.members[restarted]
        self.members[restarted] = Member(old.name, old.incarnation + 1, old.machine)
        first = max(max(place.results, default=-1) for place in self.places) + 1
        for rank, place in enumerate(self.places):
            place.exchange = self.machine(rank, first)

    # Effects.

    def act(self, rank: int, effects: Sequence[Any]) -> None:
        place = self.places[rank]
        for effect in effects:
            match effect:
                case Send():
                    self.send(rank, effect)
                case AddChunk(span=span, payload=payload, divisor=divisor):
                    target = place.vectors[span.vector][span.start : span.stop]
                    target += np.frombuffer(payload, np.float32)  # type: ignore[call-overload]
                    if divisor != 1:
                        target /= np.float32(divisor)
                case CopyChunk(span=span, payload=payload):
                    target = place.vectors[span.vector][span.start : span.stop]
                    target[:] = np.frombuffer(payload, np.float32)  # type: ignore[call-overload]
                case ExchangeDone():
                    self.done(rank, effect)
                case Refuse():
                    self.refused.append(effect)
        for machine in self.machines_of(rank):
            machine.validate()

    def send(self, rank: int, send: Send) -> None:
        place, payload = self.places[rank], None
        if send.payload is not None:
            span = send.payload
            payload = place.vectors[span.vector][span.start : span.stop].tobytes()
            place.sent_bytes += len(payload)
        place.sent_messages += isinstance(send.message, PartialChunk | FinalChunk)
        place.requests += payload is None
        to = next(n for n, member in enumerate(self.members) if member.name == send.to)
        incarnation = self.members[rank].incarnation
        self.flights.append(Flight(rank, to, incarnation, encode(send.message), payload))

    def done(self, rank: int, done: ExchangeDone) -> None:
        """Checks a result against every other member's; what it replaces may be written again."""
        place, number = self.places[rank], done.number
        vector = place.vectors[f"gradient {number % 2}"]
        outside = np.concatenate([vector[:BEFORE], vector[-BEHIND:]])
        assert (outside == 7.0).all()
        self.keep(place, number, (vector[BEFORE:-BEHIND].tobytes(), done.dropped))
        if f"gradient {(number + 1) % 2}" in place.vectors:
            place.vectors[f"gradient {(number + 1) % 2}"][:] = np.nan

    def keep(self, place: Place, number: int, result: tuple[bytes, tuple[int, ...]]) -> None:
        assert self.bits.setdefault(number, result) == result, f"number {number} has two results"
        assert number not in place.results, f"number {number} ended twice"
        place.results[number] = result

    def all_have(self, number: int) -> bool:
        return all(number in place.results for place in self.places)
