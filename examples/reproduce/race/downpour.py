"""Downpour SGD on the clock: the real state machines of its protocol over real vectors; without shards, plain
SGD.

A replica is one part here: its machines compute a step together, and each has its own link.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

import numpy as np
from typing_extensions import override

from examples.reproduce.race.clock import Clock, Host, Numbers
from examples.reproduce.race.digits import EXAMPLES
from examples.reproduce.race.machines import Fleet
from examples.reproduce.race.setting import NEVER_SILENT, Run, Setting
from partita.engine import Optimizer
from partita.engine.parameters import UpdateContext, Updater, Vector, VectorStore
from partita.engine.protocol import ApplyOnArrival, ParameterLinks, Shard, ShardRanges, decode
from partita.engine.protocol.commands import POINT
from partita.engine.protocol.events import Received, Refuse, Send, Span
from partita.engine.protocol.link import Install, Stage, SwapBuffers
from partita.engine.protocol.messages import Heartbeat, Push
from partita.engine.protocol.names import COORDINATOR, part_name
from partita.engine.protocol.parameter_links import LinkEffect
from partita.engine.protocol.shard_effects import ApplyGradient
from partita.engine.runtime.feed import Sampler
from partita.engine.testing.world import Delivery

RUN_AHEAD = 16
"""Steps that may follow a push before its acknowledgement."""

PASSES = 5
"""Passes of a shard over its slice for one push: reads values, state and gradient, writes values and
state."""


class Server(Host):
    """A shard, or a group of shards that hold neighbouring numbers: the real machine over real values."""

    def __init__(self, clock: Clock, setting: Setting, number: int, fleet: Fleet, updater: Updater) -> None:
        name = setting.spans(fleet)[number][0]
        super().__init__(clock, name, setting.ways_of_group(fleet))
        self.updater, self.number = updater, number
        own = ShardRanges(self.name, incarnation=1, ranges={0: (0, updater.store.size)})
        self.machine = Shard(own, ApplyOnArrival(own), heartbeats=NEVER_SILENT)
        self.machine.receive(Received(COORDINATOR, 1, Heartbeat(1, self.clock)), self.clock)
        self._fetch_s = setting.pass_s(fleet)
        self._push_s = PASSES * self._fetch_s

    def on_message(self, delivery: Delivery) -> None:
        """Queues the message behind earlier work of the shard."""
        sender, incarnation, data, payload = delivery
        received = Received(sender, incarnation, decode(data), payload)
        work_s = self._push_s if isinstance(received.message, Push) else self._fetch_s
        self.world.at(self.occupied(work_s), self, self.on_taken, received)

    def on_taken(self, received: Received) -> None:
        """Passes the message to the state machine and carries out its effects."""
        for effect in self.machine.receive(received, self.clock):
            match effect:
                case ApplyGradient(span=span, payload=Numbers(array=array), updates=updates):
                    self.updater.apply(span, [array], updates)
                case Send(to=to, message=message, payload=span):
                    self.send(
                        to, message, span and Numbers(self.updater.store.read(span).copy(), self.number)
                    )
                case _:
                    raise AssertionError(effect)


class Part(Host):
    """A replica: the real links, real gradients, and the seconds of the large network's steps."""

    def __init__(self, run: Downpour, replica: int) -> None:
        setting, fleet, start = run.setting, run.fleet, run.start
        super().__init__(run.clock, part_name(replica, 0), setting.ways_of_replica(fleet))
        spans = setting.spans(fleet)
        self._optimizer, self._fetch_every = run.optimizer, run.fetch_every
        self.links = ParameterLinks(
            incarnation=1,
            streams=spans,
            alone=fleet.replicas == 1,
            stateful=bool(run.optimizer.state_names),
        )
        self._digits, self._seconds = setting.digits, setting.times.steps(fleet.size)
        self._slice_at = {first: n for n, (_, first, _) in enumerate(spans)}
        self._sampler, self._units = run.sampler, run.units
        self.vectors = {
            name: np.zeros_like(start) for name in ("staged", "gradient", "accumulated", "in_flight")
        }
        self.vectors["parameters"] = start.copy()
        self._state = run.optimizer.state(len(start), start.dtype)
        self._update = run.optimizer.bind(
            self.vectors["parameters"],
            self.vectors["gradient"],
            self._state,
            accumulated=self.vectors["accumulated"],
        )
        self.steps, self._inside = 0, False

    def begin(self) -> None:
        """Asks for the first parameters: all shards are connected."""
        self._act(self.links.pull(self.clock))
        self._try_to_begin()

    def on_message(self, delivery: Delivery) -> None:
        """Handles parameters, or the acknowledgement of a push."""
        sender, incarnation, data, payload = delivery
        self._act(self.links.receive(Received(sender, incarnation, decode(data), payload), self.clock))
        self._try_to_begin()

    def _try_to_begin(self) -> None:
        if not self._inside and self.links.has_room(RUN_AHEAD):
            self._inside = True
            self._act(self.links.install())
            if self.steps % self._fetch_every == 0:
                self._act(self.links.pull(self.clock))
            self.later(self.world.random.choice(self._seconds), self.on_computed)

    def on_computed(self, _: object) -> None:
        """Ends a step with the gradient at the parameters with which it began."""
        unit = next(self._units)
        found = self._digits.gradient(self.vectors["parameters"], self._sampler.indices(unit))
        np.copyto(self.vectors["gradient"], found.gradient)
        self._update(UpdateContext(self.steps))
        self._inside = False
        self._act(self.links.computed(self.steps, unit, self.clock))
        self._act(self.links.push(self.clock))
        self.steps += 1
        self._try_to_begin()

    def _act(self, effects: Iterable[LinkEffect]) -> None:
        vectors = self.vectors
        for effect in effects:
            match effect:
                case Send(to=to, message=message, payload=span):
                    self.send(to, message, span and self._numbers(span))
                case SwapBuffers(span=Span(start=start, stop=stop)):
                    vectors["in_flight"][start:stop] = vectors["accumulated"][start:stop]
                    vectors["accumulated"][start:stop] = 0.0
                case Stage(span=Span(start=start, stop=stop), payload=Numbers(array=array)):
                    vectors["staged"][start:stop] = array
                case Install():
                    self._install(effect)
                case Refuse():
                    raise AssertionError(effect)

    def _install(self, effect: Install) -> None:
        """Takes over parameters, and applies the replica's own gradients that they lack."""
        span = slice(effect.span.start, effect.span.stop)
        own = self.vectors["parameters"][span]
        own[:] = self.vectors["staged"][span]
        for n, name in enumerate(effect.unheld):
            state = {kept: vector[span].copy() for kept, vector in self._state.items()}
            update = self._optimizer.on_shard().bind(own, self.vectors[name][span], state)
            update(UpdateContext(effect.updates + n, age=self.steps))

    def _numbers(self, span: Span) -> Numbers:
        return Numbers(self.vectors[span.vector][span.start : span.stop].copy(), self._slice_at[span.start])


@dataclass
class Downpour(Run):
    """A run: replicas and shards that start at one point.

    Args:
        setting: of the race.
        fleet: who does what; with one replica and no shard, plain SGD.
        optimizer: of shards and replicas.
        start: the point.
        now: the time at which it begins.
        seed: of the order of the data, and of the times.
        fetch_every: steps from one fetch to the next.
    """

    setting: Setting
    fleet: Fleet
    optimizer: Optimizer
    start: Vector
    now: float = 0.0
    seed: int = 0
    fetch_every: int = 1

    def __post_init__(self) -> None:
        setting, fleet = self.setting, self.fleet
        self.clock = setting.clock(self.seed, self.now)
        spans = setting.spans(fleet)
        stores = [VectorStore(self.start[first:stop]) for _, first, stop in spans]
        updaters = [Updater(self.optimizer, store) for store in stores]
        self.servers = [Server(self.clock, setting, n, fleet, one) for n, one in enumerate(updaters)]
        batch = setting.digits.batch
        self.sampler, self.units = Sampler(examples=EXAMPLES, batch=batch, seed=self.seed), count()
        self.parts = [Part(self, replica) for replica in range(fleet.replicas)]

    @property
    def point(self) -> Vector:
        """Values of the shards; without shards, what the replica has."""
        if not self.servers:
            return self.parts[0].vectors["parameters"].copy()
        return np.concatenate([server.updater.store.vector(POINT) for server in self.servers])

    @property
    def steps(self) -> int:
        """Steps of all replicas together."""
        return sum(part.steps for part in self.parts)

    @property
    def staleness(self) -> float:
        """Mean number of other replicas' pushes between the fetch and the push of a gradient."""
        pushes = sum(part.links.pushes for part in self.parts)
        return sum(part.links.staleness for part in self.parts) / max(pushes, 1)

    @override
    def begin(self) -> None:
        for part in self.parts:
            part.begin()
