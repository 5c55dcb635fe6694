"""Sandblaster on the clock: the real coordinator, shards and clients, a real method, real vectors.

Gradients are summed over all pictures, so every fleet visits the same points, at other times. A replica is
one part here, as in `downpour`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from typing_extensions import override

from examples.reproduce.race.clock import Clock, Host, Numbers, Ways
from examples.reproduce.race.digits import EXAMPLES
from examples.reproduce.race.machines import Fleet
from examples.reproduce.race.setting import NEVER_SILENT, Run, Setting
from partita.engine import Method, Objective
from partita.engine import Sandblaster as Driver
from partita.engine.parameters import Vector, VectorStore
from partita.engine.protocol import (
    Coordinator,
    EvaluationMode,
    Part,
    PointLinks,
    Shard,
    ShardRanges,
    SumThenContinue,
    Topology,
    decode,
)
from partita.engine.protocol.assigned_work import AssignedWork, RunAssignment
from partita.engine.protocol.batch_messages import Assignment, Command
from partita.engine.protocol.commands import POINT, Operation, Portions, reads, writes
from partita.engine.protocol.coordinator_effects import (
    AbortRun,
    CoordinatorEvent,
    Launched,
    Opened,
    Progress,
    RunSettings,
    Timeouts,
)
from partita.engine.protocol.events import Persist, Received, Send, Span, Tick
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.link import Install, Stage, SwapBuffers
from partita.engine.protocol.messages import Heartbeat, Hello, Ready
from partita.engine.protocol.names import COORDINATOR, part_name
from partita.engine.protocol.program_effects import StepDone
from partita.engine.protocol.shard_effects import (
    AddGradient,
    MoveGradient,
    OperationsDone,
    RunOperations,
    ShardEvent,
    StoreGradient,
)
from partita.engine.protocol.views import Outline
from partita.engine.testing.world import Delivery

UNIT_SIZE = 2
"""Portions whose gradient is sent at once."""

NOTHING_FAILS = Timeouts(
    heartbeats=NEVER_SILENT,
    checkpoint_every_s=None,
    start_s=inf,
    save_s=inf,
    retry_s=inf,
    stall_s=inf,
)


class VectorServer(Host):
    """A shard, or a group of shards: the real machine over real vectors."""

    def __init__(self, clock: Clock, setting: Setting, number: int, fleet: Fleet, start: Vector) -> None:
        name, first, stop = setting.spans(fleet)[number]
        super().__init__(clock, name, setting.ways_of_group(fleet))
        self.store, self.number = VectorStore(start[first:stop]), number
        own = ShardRanges(name, incarnation=1, ranges={0: (0, stop - first)})
        policy = SumThenContinue(own, unit_size=UNIT_SIZE)
        self.machine = Shard(own, policy, heartbeats=NEVER_SILENT)
        self.machine.receive(Received(COORDINATOR, 1, Heartbeat(1, self.clock)), self.clock)
        self._kept: dict[int, Vector] = {}
        self._pass_s = setting.pass_s(fleet)

    def on_message(self, delivery: Delivery) -> None:
        """Queues the message behind earlier work of the shard."""
        sender, incarnation, data, payload = delivery
        self.world.at(
            self.occupied(0.0), self, self.on_free, Received(sender, incarnation, decode(data), payload)
        )

    def on_free(self, received: Received) -> None:
        """Passes the message to the state machine: the shard is free."""
        self._do(received)

    def _do(self, event: ShardEvent) -> None:
        """Carries out effects; each waits for the passes over memory of those before it."""
        for effect in self.machine.receive(event, self.clock):
            match effect:
                case RunOperations(operations=operations):
                    self.occupied(self._pass_s * sum(map(passes, operations)))
                    scalars = [scalar for one in operations for scalar in self.store.execute(one)]
                    self._do(OperationsDone(scalars))
                case StoreGradient(unit=unit, payload=Numbers(array=array), beside=None):
                    self._kept[unit] = array.copy()
                case StoreGradient(unit=unit, payload=Numbers(array=array), beside=int(beside)):
                    self._kept[min(unit, beside)] = self._kept.pop(beside) + array
                    self.occupied(3 * self._pass_s)
                case AddGradient(into=into, of=of):
                    self._kept[into] += self._kept.pop(of)
                    self.occupied(3 * self._pass_s)
                case MoveGradient(unit=unit, span=Span(vector=name, start=start, stop=stop)):
                    self.store.target(name)[start:stop] = self._kept.pop(unit)
                    self.occupied(2 * self._pass_s)
                case Send(message=message, payload=None):
                    self.world.at(self.occupied(0.0), self, self.on_done, effect)
                case Send(to=to, message=message, payload=Span(vector=name, start=start, stop=stop)):
                    self.occupied(self._pass_s)
                    numbers = Numbers(self.store.vector(name)[start:stop].copy(), self.number)
                    self.world.at(self.occupied(0.0), self, self.on_done, Send(to, message, numbers))
                case Persist():
                    pass  # the last checkpoint, when all is over
                case _:
                    raise AssertionError(effect)

    def on_done(self, effect: Send) -> None:
        """Sends a message after the work that it waited for."""
        self.send(effect.to, effect.message, effect.payload)


def passes(operation: Operation) -> int:
    """Number of vectors that an operation reads and writes."""
    return len(reads(operation)) + len(writes(operation))


class Worker(Host):
    """A replica: the real machine of a part, real gradients, and the seconds of the large network's steps."""

    def __init__(self, clock: Clock, setting: Setting, replica: int, fleet: Fleet) -> None:
        super().__init__(clock, part_name(replica, 0), setting.ways_of_replica(fleet))
        spans = setting.spans(fleet)
        links = PointLinks(streams=spans, retry_s=inf)
        self.machine = Part(Driver().replica, AssignedWork(links, alone=fleet.size == 1))
        self._setting, self._seconds = setting, setting.times.steps(fleet.size)
        self._slice_at = {first: n for n, (_, first, _) in enumerate(spans)}
        names = ("parameters", "staged", "accumulated", "in_flight")
        self.vectors = {name: np.zeros(setting.digits.size, np.float32) for name in names}

    def begin(self) -> None:
        """Starts the part: all shards are connected."""
        self._do(PeersChanged(1, {}))

    def on_message(self, delivery: Delivery) -> None:
        """Handles a point, an assignment, or the acknowledgement of a gradient."""
        sender, incarnation, data, payload = delivery
        self._do(Received(sender, incarnation, decode(data), payload))

    def on_played(self, assignment: RunAssignment) -> None:
        """The gradients of a work unit, at the point with which it began."""
        loss, correct, batch = 0.0, 0, self._setting.digits.batch
        self.vectors["accumulated"][:] = 0.0
        for portion in (
            range(assignment.first, assignment.first + assignment.count) if not assignment.discarded else ()
        ):
            start = portion * batch % EXAMPLES
            found = self._setting.digits.gradient(self.vectors["parameters"], slice(start, start + batch))
            self.vectors["accumulated"] += found.gradient
            loss += found.loss * batch
            correct += found.correct
        self._do(StepDone(assignment.number, loss=loss, correct=correct))

    def _do(self, event: Received | PeersChanged | StepDone) -> None:
        vectors = self.vectors
        for effect in self.machine.receive(event, self.clock):
            match effect:
                case RunAssignment(count=count):
                    took = sum(self.world.random.choice(self._seconds) for _ in range(count))
                    self.later(took, self.on_played, effect)
                case Send(to=to, message=message, payload=span):
                    self.send(to, message, span and self._numbers(span))
                case SwapBuffers():
                    vectors["in_flight"], vectors["accumulated"] = (
                        vectors["accumulated"],
                        vectors["in_flight"],
                    )
                case Stage(span=Span(start=start, stop=stop), payload=Numbers(array=array)):
                    vectors["staged"][start:stop] = array
                case Install(span=Span(start=start, stop=stop)):
                    vectors["parameters"][start:stop] = vectors["staged"][start:stop]
                case _:
                    raise AssertionError(effect)

    def _numbers(self, span: Span) -> Numbers:
        return Numbers(self.vectors[span.vector][span.start : span.stop].copy(), self._slice_at[span.start])


class Director(Host):
    """The real coordinator. A host that it launches is ready at once."""

    def __init__(self, clock: Clock, fleet: Fleet, setting: Setting, method: Method) -> None:
        super().__init__(clock, COORDINATOR, Ways(1, 1, inf))
        objective = Objective(Portions(EXAMPLES, setting.digits.batch))
        topology = Topology(fleet.replicas, 1, fleet.groups)
        self._hosts = (*topology.shard_names, *(topology.parts(n)[0] for n in range(fleet.replicas)))
        self.machine = Coordinator(
            lambda run: method.steps(objective),
            Outline(0, EXAMPLES, setting.digits.batch, fleet.replicas),
            EvaluationMode(unit_size=UNIT_SIZE),
            topology,
            settings=RunSettings(
                incarnations=dict.fromkeys(self._hosts, self.incarnation), timeouts=NOTHING_FAILS
            ),
        )
        self._wakes_at = inf
        self.advances: list[tuple[float, Progress]] = []

    def begin(self) -> None:
        """Connects all hosts."""
        self._do(Opened())
        for name in self._hosts:
            self._do(Launched(name, self.incarnation, "key"))
            self._do(Received(name, self.incarnation, Hello(name, {})))
        for name in self._hosts:
            self._do(Received(name, self.incarnation, Ready()))

    def on_message(self, delivery: Delivery) -> None:
        """An answer, or the end of an assignment."""
        sender, incarnation, data, payload = delivery
        self._do(Received(sender, incarnation, decode(data), payload))

    def on_wake(self, _: object) -> None:
        """Wakes the coordinator, which looks for stragglers."""
        self._wakes_at = inf
        self._do(Tick())

    def _do(self, event: CoordinatorEvent) -> None:
        for effect in self.machine.receive(event, self.clock):
            match effect:
                case Send(to=to, message=Command() | Assignment() as message):
                    self.send(to, message)
                case Progress():
                    self.advances.append((self.world.now, effect))
                case AbortRun():
                    raise AssertionError(effect)
        if self.machine.wakes_at < self._wakes_at:
            self._wakes_at = self.machine.wakes_at
            self.later(max(0.0, self._wakes_at - self.clock), self.on_wake)


@dataclass
class Sandblaster(Run):
    """A run: replicas and shards that start at one point.

    Args:
        setting: of the race.
        fleet: who does what.
        method: real.
        start: the point.
        now: the time at which it begins.
        seed: of the times.
    """

    setting: Setting
    fleet: Fleet
    method: Method
    start: Vector
    now: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.clock = self.setting.clock(self.seed, self.now)
        groups, replicas = range(self.fleet.groups), range(self.fleet.replicas)
        self.servers = [VectorServer(self.clock, self.setting, n, self.fleet, self.start) for n in groups]
        self.workers = [Worker(self.clock, self.setting, n, self.fleet) for n in replicas]
        self.director = Director(self.clock, self.fleet, self.setting, self.method)
        self._point, self._iterations = self.start, 0

    @property
    def point(self) -> Vector:
        """Point at the end of the last iteration."""
        if self._iterations < len(self.advances):
            self._iterations = len(self.advances)
            self._point = np.concatenate([server.store.vector(POINT) for server in self.servers])
        return self._point

    @property
    def advances(self) -> list[tuple[float, Progress]]:
        """The time of each iteration's end, and its report."""
        return self.director.advances

    @property
    @override
    def over(self) -> bool:
        return self.director.machine.plan.outcome is not None

    @override
    def begin(self) -> None:
        for worker in self.workers:
            worker.begin()
        self.director.begin()
