"""Simulated bodies: what those of all drivers have in common.

A part's holds a few vectors of its machine's numbers, a shard's writes files to the simulated disk, one after
the other.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Final

from partita.engine.protocol.events import (
    Received,
    Send,
    Span,
    Tick,
)
from partita.engine.protocol.host import PeersChanged, RoleMachine
from partita.engine.protocol.link import Install, Stage, SwapBuffers
from partita.engine.protocol.messages import Message
from partita.engine.protocol.names import part_indices
from partita.engine.protocol.part import LookForWaits, PlayerWaits
from partita.engine.testing.host import Numbers, SimulatedBody, SimulatedHost
from partita.engine.testing.schedule import Schedule

RETRY_S: Final = 1.0


class Whole(RoleMachine):
    """Passes every event to its body."""

    def __init__(self, *, heartbeat_s: float = 0.0) -> None:
        self.heartbeat_s = heartbeat_s

    def receive(self, event: Any, now: float) -> tuple[Any, ...]:
        """Returns the event as its own effect."""
        return (event,)


class WholeBody(SimulatedBody):
    """A role in one piece."""

    schedule: Schedule

    def __init__(self, schedule: Schedule, host: SimulatedHost) -> None:
        super().__init__(host)
        self.schedule = schedule
        self.name, self.incarnation, self.id = host.name, host.incarnation, host.id
        self.world, self.later = host.world, host.later

    @property
    def clock(self) -> float:
        """The host's clock in seconds."""
        return self.host.clock

    @property
    def alive(self) -> bool:
        """Whether the process lives."""
        return self.host.alive

    def send(self, to: str, message: Message, payload: object = None) -> None:
        """Sends a message of the host."""
        self.host.send(to, message, payload)

    def carry_out(self, effect: Any, event: Any) -> None:
        """Handles an event, which is its own effect."""
        match effect:
            case Received():
                self.receive(effect)
            case Tick():
                self.tick()
            case PeersChanged():
                self.peers_changed(effect)
            case _:
                self.do(effect)

    @abstractmethod
    def receive(self, received: Received) -> None:
        """Handles a message for the role."""

    @abstractmethod
    def tick(self) -> None:
        """Handles the passing of time."""

    def peers_changed(self, changed: PeersChanged) -> None:
        """Handles a new directory."""

    @abstractmethod
    def do(self, event: Any) -> None:
        """Gives the machine inside an event, and carries out its effects."""


class PartBody(SimulatedBody):
    """A part: vectors of its machine's numbers."""

    schedule: Schedule

    def __init__(self, schedule: Schedule, host: SimulatedHost) -> None:
        super().__init__(host)
        self.schedule = schedule
        self.name, self.incarnation, self.id = host.name, host.incarnation, host.id
        self.world, self.later = host.world, host.later
        indices = part_indices(self.name)
        assert indices is not None
        self.replica, self.machine = indices
        self.spans = self.schedule.layout.of_machine[self.machine]
        n = sum(stop - start for _, start, stop in self.spans)
        names = ("parameters", "staged", "accumulated", "in_flight")
        self.vectors = {name: [0.0] * n for name in names}

    @property
    def alive(self) -> bool:
        """Whether the process lives."""
        return self.host.alive

    def raises(self) -> bool:
        """Whether the user's function raises now, which ends the part's work."""
        raises = self.schedule.raises(self.name)
        if raises:
            self.host.fail("the user's function raised")
        return raises

    def payload(self, send: Send) -> Numbers:
        """Returns the numbers of a gradient in flight."""
        assert send.payload is not None, send
        return Numbers(self.vectors[send.payload.vector][send.payload.start : send.payload.stop])

    def carry_out(self, effect: Any, event: Any) -> Any:
        """Carries out an effect that the machines of all parts have."""
        match effect:
            case Stage(span=Span(start=start, stop=stop), payload=Numbers() as numbers):
                self.vectors["staged"][start:stop] = numbers
            case Install(span=Span(start=start, stop=stop)):
                self.vectors["parameters"][start:stop] = self.vectors["staged"][start:stop]
            case SwapBuffers(span=Span(start=start, stop=stop)):
                self.vectors["in_flight"][start:stop] = self.vectors["accumulated"][start:stop]
                self.vectors["accumulated"][start:stop] = [0.0] * (stop - start)
            case LookForWaits():
                return PlayerWaits(0, ())
            case _:
                raise AssertionError(effect)
        return None


class ShardBody(WholeBody):
    """A shard: a driver's machine, and files that are written one after the other."""

    def tick(self) -> None:
        """Gives the machine a tick."""
        self.do(Tick())

    def receive(self, received: Received) -> None:
        """Gives the machine a message."""
        self.do(received)
