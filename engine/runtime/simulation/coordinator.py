"""The user's process in a schedule: interprets what every coordinator asks for, and launches its hosts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from partita.engine.protocol.coordinator_effects import (
    Committed,
    CoordinatorEffect,
    CoordinatorEvent,
    Launched,
    NotCommitted,
    Restart,
    Starting,
    Timeouts,
)
from partita.engine.protocol.events import Died, Received, Send, Tick
from partita.engine.protocol.membership import HeartbeatPolicy
from partita.engine.protocol.messages import Heartbeat, decode
from partita.engine.protocol.names import COORDINATOR
from partita.engine.runtime.simulation.hosts import HEARTBEAT_S, Host, Run
from partita.engine.runtime.simulation.judgement import Life, Writers
from partita.engine.runtime.simulation.scenario import Surroundings
from partita.engine.runtime.simulation.world import Delivery, Process, World

TICK_S: Final = 0.7
ANSWER_S: Final = 12.0

Launch: TypeAlias = Callable[[Run, Life, int | None], Host]
"""Makes the process of a host, which starts from its file of a checkpoint."""


class Machine(Protocol):
    """What the machines of all coordinators have in common."""

    @property
    def waits_for(self) -> tuple[tuple[str, str, float], ...]:
        """Who is waited for, for what, and since when."""
        ...

    def receive(self, event: CoordinatorEvent, now: float) -> list[CoordinatorEffect]:
        """What follows from an event."""
        ...

    def validate(self) -> None:
        """Its invariants."""
        ...


def timeouts(around: Surroundings) -> Timeouts:
    """That of a schedule: hosts may die often."""
    return Timeouts(
        heartbeats=HeartbeatPolicy(heartbeat_s=HEARTBEAT_S),
        checkpoint_every_s=around.checkpoint_every_s,
        stall_s=around.stall_s,
        answer_s=ANSWER_S,
        deaths=50,
    )


class CoordinatorHost(Process):
    """A coordinator's process, with a run of its own."""

    machine: Machine

    def __init__(self, world: World, around: Surroundings, launch: Launch, *, incarnation: int = 0) -> None:
        super().__init__(world, COORDINATOR, incarnation)
        self.run: Final = Run(self)
        self.writers: Final = Writers()
        self.current: dict[str, int] = {}
        self._around = around
        self._launch = launch

    def resolve(self, name: str) -> Process | None:
        """The newest process that it had launched."""
        return self.run.hosts.get((name, self.current.get(name, -1)))

    def on_tick(self, _: object = None) -> None:
        """Time passes."""
        self.later(TICK_S, self.on_tick)
        self.on_event(Tick())

    def on_message(self, delivery: Delivery) -> None:
        """A message of a host."""
        sender, incarnation, data, payload = delivery
        message = decode(data)
        self._do(Received(sender, incarnation, message, payload))
        if type(message) is not Heartbeat:  # a third of all events, and the next tick validates them too
            self.machine.validate()

    def on_event(self, event: CoordinatorEvent) -> None:
        """Any other event."""
        self._do(event)
        self.machine.validate()

    def host_exited(self, host: Process) -> None:
        """One of its hosts has ended, and it may be told so."""
        awaited = (name for name, _, _ in self.machine.waits_for)
        if self._around.sees_exits or host.name in awaited:  # before Ready, silence says nothing
            died = Died(host.name, host.incarnation, "its process ended")
            self.later(0.2 * self.world.random.random(), self.on_event, died)

    def writes(self, checkpoint: int, write: Callable[[], None]) -> None:
        """Writes a manifest, or fails to, and says so later; between the two anything may happen."""
        full = self._around.is_full(self.world.random, self.world.now)
        if not full:
            write()
        answer = NotCommitted(checkpoint, "no space") if full else Committed(checkpoint)
        self.later(self._around.write_s * self.world.random.random(), self.on_event, answer)

    def _do(self, event: CoordinatorEvent) -> None:
        for effect in self.machine.receive(event, self.clock):
            if self.alive:
                self.perform(effect)

    def perform(self, effect: CoordinatorEffect) -> None:
        """One effect, in its order."""
        if isinstance(effect, Send):
            self.send(effect.to, effect.message)
        elif isinstance(effect, Restart):
            self._restart(effect)
        elif not isinstance(effect, Starting):  # only to be shown
            self.carry_out(effect)

    @abstractmethod
    def carry_out(self, effect: CoordinatorEffect) -> None:
        """Any effect but a message and a launch."""

    def _restart(self, order: Restart) -> None:
        self.world.note(self, "Restart", order)
        for name, incarnation in order.hosts:
            old = self.run.hosts.get((name, incarnation - 1))
            if old is not None and self._around.can_kill:
                old.exit()
            self.writers.replaced(name, incarnation)
            self.current[name] = incarnation
            wait_s = 0.3 * self.world.random.random()
            self.later(wait_s, self._on_launch, ((name, incarnation), order.checkpoint))
            self.later(0.0, self.on_event, Launched(name, incarnation))

    def _on_launch(self, order: tuple[Life, int | None]) -> None:
        """A process starts, unless it has been replaced meanwhile."""
        (name, incarnation), checkpoint = order
        if self.current[name] == incarnation or not self._around.can_kill:
            life = (name, incarnation)
            self.run.hosts[life] = self._launch(self.run, life, checkpoint)
