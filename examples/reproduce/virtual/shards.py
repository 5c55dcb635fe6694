"""Parameters on shards in virtual time, as those of one: pushes are applied on arrival, or merged."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np

from examples.reproduce.two_functions import EXAMPLES
from partita.engine import Compensated
from partita.engine.drivers import Driver
from partita.engine.parameters import Updater, Vector
from partita.engine.parameters.vectors import VectorStore
from partita.engine.protocol.commands import POINT
from partita.engine.protocol.events import Received, Send, Span
from partita.engine.protocol.merge_on_quorum import MergeOnQuorum
from partita.engine.protocol.merging import Merging, UnitSizes
from partita.engine.protocol.messages import Fetch, Parameters, Push, PushAck
from partita.engine.protocol.names import part_indices, part_name
from partita.engine.protocol.shard_effects import ApplyGradient, Compensate, ShardEffect, ShardRanges
from partita.engine.runtime.delay_compensation import DelayCompensation
from partita.engine.transport.payload import Payload

Stream: TypeAlias = tuple[int, int]
"""A replica, and a fragment."""


class AnyShard(Protocol):
    """Parameters that replicas fetch, and change by what they push."""

    @property
    def point(self) -> Vector:
        """A copy of the parameters."""

    def fetch(self, stream: Stream, now: float) -> tuple[int, Vector, int, list[Stream]]:
        """Returns the version, a copy of the values of a fragment, how many pushes of the replica these hold,
        and the streams whose pushes are applied now.
        """

    def push(
        self, stream: Stream, base: int, numbers: Vector, units: tuple[int, ...], now: float
    ) -> list[Stream]:
        """Takes a push of a fragment, from values of a version; returns the streams whose pushes are applied
        now.
        """

    def tick(self, now: float) -> list[Stream] | None:
        """Lets time pass; returns the streams whose pushes are applied now, or None where none wait."""


def spans_of(size: int, fragments: int) -> list[slice]:
    """Returns the nearly equal ranges of fragments."""
    return [slice(*cut) for cut in pairwise(n * size // fragments for n in range(fragments + 1))]


class Shard:
    """Applies each push on arrival.

    Attributes:
        ages: for each push, the updates of others since its values were fetched.
    """

    def __init__(self, driver: Driver, start: Vector) -> None:
        if driver.n_fragments != 1:
            raise ValueError(f"{driver} has fragments, which are played only where pushes merge")
        self.store = VectorStore(start.copy())
        self.span = Span(POINT, 0, start.size)
        self.version, self.by = 0, dict[int, list[int]]()
        self.ages: list[int] = []
        self._staleness = driver.staleness
        self._updater = Updater(driver.optimizer_of_shards, self.store)
        settings = driver.staleness if isinstance(driver.staleness, Compensated) else Compensated(0.0)
        self._compensation = DelayCompensation(settings, self.store, ((0, start.size),))

    @property
    def point(self) -> Vector:
        """A copy of the parameters."""
        return self.store.read(self.span).copy()

    def fetch(self, stream: Stream, now: float) -> tuple[int, Vector, int, list[Stream]]:
        """Returns the values, see `AnyShard`."""
        rank, _ = stream
        if isinstance(self._staleness, Compensated):
            self._compensation.fetched(part_name(rank, 0), self.version, self.span)
        return self.version, self.point, len(self.by.get(rank, ())), []

    def push(
        self, stream: Stream, base: int, numbers: Vector, units: tuple[int, ...], now: float
    ) -> list[Stream]:
        """Applies a push, see `AnyShard`."""
        rank, _ = stream
        own, part = self.by.setdefault(rank, []), part_name(rank, 0)
        tau = self.version - base - (len(own) - bisect_right(own, base))
        payload = _payload(numbers)
        self.ages.append(tau)
        scale = self._staleness.scale(tau)
        effect = ApplyGradient(self.span, payload, self.version, part, 0, len(own), scale)
        before = None
        if isinstance(self._staleness, Compensated):
            self._compensation.correct(Compensate(self.span, payload, part, base))
            before = self._compensation.before(effect)
        self._updater.apply(self.span, payload.numbers(numbers.dtype), self.version, effect.scale)
        self._compensation.after(effect, before)
        self.version += 1
        own.append(self.version)
        return [stream]

    def tick(self, now: float) -> list[Stream] | None:
        """Does nothing: no push waits."""
        return None


class MergingShard:
    """Merges pushes by the real policy of shards, which gets the messages of replicas, and the time."""

    def __init__(self, driver: Driver, start: Vector, merging: Merging, *, batch: int) -> None:
        spans = spans_of(start.size, driver.n_fragments)
        ranges = {n: (span.start, span.stop) for n, span in enumerate(spans)}
        own = ShardRanges("shard 0", 0, ranges, start.itemsize)
        self._policy = MergeOnQuorum(own, merging=merging, sizes=UnitSizes(EXAMPLES, batch))
        self._store = VectorStore(start.copy())
        self._updater = Updater(driver.optimizer_of_shards, self._store)
        self._merged = np.zeros_like(start)
        self._sequences: dict[Stream, int] = {}
        self._waiting: set[Stream] = set()

    @property
    def point(self) -> Vector:
        """A copy of the parameters."""
        return self._store.read(Span(POINT, 0, self._store.size)).copy()

    def fetch(self, stream: Stream, now: float) -> tuple[int, Vector, int, list[Stream]]:
        """Returns the values, and merges what is due behind them, see `AnyShard`."""
        self._policy.now = now
        effects = self._given(stream, Fetch(0, fragment=stream[1]))
        answers = [one for one in effects if isinstance(one, Send) and isinstance(one.message, Parameters)]
        ((answer, span),) = ((one.message, one.payload) for one in answers)
        at = effects.index(answers[0])
        before = self._applied(effects[:at])
        values = self._store.read(span).copy()
        return answer.version, values, answer.pushes, before + self._applied(effects[at:])

    def push(
        self, stream: Stream, base: int, numbers: Vector, units: tuple[int, ...], now: float
    ) -> list[Stream]:
        """Lets a push wait, and merges what is due, see `AnyShard`."""
        self._policy.now = now
        sequence = self._sequences[stream] = self._sequences.get(stream, -1) + 1
        self._waiting.add(stream)
        of = tuple((unit, unit + 1) for unit in units)
        message = Push(0, sequence, 0, base, 0, of, fragment=stream[1])
        return self._applied(self._given(stream, message, _payload(numbers)))

    def tick(self, now: float) -> list[Stream] | None:
        """Merges what is due, see `AnyShard`."""
        self._policy.now = now
        return self._applied(self._policy.tick(leased=True)) if self._waiting else None

    def _given(
        self, stream: Stream, message: Fetch | Push, payload: Payload | None = None
    ) -> list[ShardEffect]:
        return self._policy.receive(Received(part_name(stream[0], 0), 0, message, payload))

    def _applied(self, effects: list[ShardEffect]) -> list[Stream]:
        """Carries out merges; returns the streams whose pushes were in them."""
        found: list[Stream] = []
        for effect in effects:
            match effect:
                case ApplyGradient(span=span, payload=Payload() as payload):
                    own = self._merged[span.start : span.stop]
                    (numbers,) = payload.numbers(own.dtype)
                    own += own.dtype.type(effect.factor) * numbers
                    if not effect.more:
                        self._updater.apply(span, [own], effect.updates, 1.0)
                        own[:] = 0.0
                case Send(to=part, message=PushAck(fragment=fragment)):
                    indices = part_indices(part)
                    assert indices is not None, part
                    found.append((indices[0], fragment))
        self._waiting.difference_update(found)
        return found


def _payload(numbers: Vector) -> Payload:
    return Payload([memoryview(numbers.copy()).cast("B")])
