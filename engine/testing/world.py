"""Virtual time: one heap of (time, counter), and processes that live, freeze and die on it.

No thread, no wall clock, no set order and no `id()`: the same seed gives the same history in any process. The
module must not know what the processes do.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

from partita.engine.protocol.messages import Message, decode, encode
from partita.engine.transport.simulated import SimulatedNetwork

Delivery: TypeAlias = tuple[str, int, bytes, object]
"""A message in flight: sender, the sender's incarnation, encoded message, payload."""

Occurrence: TypeAlias = tuple[float, "Process", Any, Any]
"""An event of the history: time, process, handler or what is noted, argument."""

_LAST_EVENTS = 60


class Process(ABC):
    """One process on the simulated network: memory that a crash takes away, and a clock of its own."""

    def __init__(self, world: World, name: str, incarnation: int) -> None:
        self.world = world
        self.name = name
        self.incarnation = incarnation
        self.alive = True
        self.frozen = False
        self.mute = False  # a shard that goes on sending heartbeats, and does none of its work
        self.offset = 1000.0 * world.random.random()
        self.backlog: list[tuple[Callable[[Any], None], Any]] = []
        world.processes.append(self)

    @property
    def clock(self) -> float:
        """The process's own monotonic clock (seconds)."""
        return self.world.now + self.offset

    def later(self, wait_s: float, handler: Callable[[Any], None], argument: object = None) -> None:
        """Calls a method of this process after a while, if the process still lives."""
        world = self.world
        world.at(world.now + wait_s, self, handler, argument)

    def send(self, to: str, message: Message, payload: object = None) -> None:
        """Gives a message to the network, for the process that `resolve` finds under this name."""
        target = self.resolve(to)
        if target is not None:
            self.world.carry(self, target, message, payload)

    @abstractmethod
    def resolve(self, name: str) -> Process | None:
        """The process that this one takes for the host of this name."""

    @abstractmethod
    def on_message(self, delivery: Delivery) -> None:
        """Handles a message that has arrived."""

    def freeze(self) -> None:
        """Stops the process as SIGSTOP does: its events wait."""
        self.frozen = True

    def thaw(self, _: object = None) -> None:
        """Continues the process as SIGCONT does: the waiting events happen at once."""
        if self.frozen:
            self.frozen = False
            backlog, self.backlog = self.backlog, []
            for handler, argument in backlog:
                self.world.at(self.world.now, self, handler, argument)

    def crash(self) -> None:
        """Ends the process as SIGKILL does."""
        self.exit()

    def exit(self, _: object = None) -> None:
        """Ends the process and loses its memory."""
        if self.alive:
            self.alive = False
            self.world.on_exit(self)


class World:
    """The clock, the processes and the network of one schedule.

    Attributes:
        now: virtual time in seconds.
        random: the schedule's source of randomness.
        beside: another one, for what must not move the draws of all that is older.
        links: draws how long messages wait in shared memory.
        has_links: whether shards share memory with their backups.
        stops: draws how long minibatches of validations take.
        processes: all that were ever launched, in that order.
        on_exit: called with each process that ends.
        until: when time runs out (seconds).
    """

    def __init__(self, seed: int, *, keep_all: bool = False) -> None:
        """A world without processes; `keep_all` keeps the whole history, not only the last events."""
        self.now = 0.0
        self.random = Random(seed)
        self.beside = Random(-39 - seed)
        self.links = Random(-71 - seed)
        self.has_links = self.links.random() < 0.5
        self.stops = Random(-103 - seed)
        self.until = 0.0
        self.processes: list[Process] = []
        self.network: SimulatedNetwork
        self.events = 0
        self.over = False
        self.on_exit: Callable[[Process], None] = lambda process: None
        self.history: deque[Occurrence] = deque(maxlen=None if keep_all else _LAST_EVENTS)
        self._heap: list[tuple[float, int, Process | None, Callable[[Any], None], Any]] = []
        self._counter = 0

    def at(
        self, time: float, process: Process | None, handler: Callable[[Any], None], argument: object
    ) -> None:
        """Calls `handler(argument)` at a time if the process lives then; a frozen one when it thaws."""
        self._counter += 1
        heapq.heappush(self._heap, (time, self._counter, process, handler, argument))

    def carry(self, source: Process, target: Process, message: Message, payload: object) -> None:
        """Sends a message over the faulty network."""
        arrivals = self.network.arrivals(source.name, target.name, self.now)
        if arrivals:
            delivery = (source.name, source.incarnation, encode(message), payload)
            for arrival in arrivals:
                self._counter += 1
                heapq.heappush(self._heap, (arrival, self._counter, target, target.on_message, delivery))

    def living(self, name: str) -> list[Process]:
        """The processes of this name that have not ended, in the order of their launch."""
        return [process for process in self.processes if process.alive and process.name == name]

    def run(self, until: float) -> bool:
        """Handles events in order until `over` is set; returns False when time runs out before.

        A handler may set `until` later.
        """
        self.until = until
        heap, pop, remember = self._heap, heapq.heappop, self.history.append
        while heap and not self.over:
            time, _, process, handler, argument = pop(heap)
            if time > self.until:
                return False
            self.now = time
            if process is not None:
                if not process.alive:
                    continue
                if process.frozen:
                    process.backlog.append((handler, argument))
                    continue
                remember((time, process, handler, argument))
            self.events += 1
            handler(argument)
        return self.over

    def note(self, process: Process, what: str, detail: object) -> None:
        """Adds an event to the history."""
        self.history.append((self.now, process, what, detail))

    def trace(self) -> tuple[str, ...]:
        """The kept history as lines, newest last."""
        return tuple(_line(occurrence) for occurrence in self.history)


def _line(occurrence: Occurrence) -> str:
    time, process, what, detail = occurrence
    host, what = f"{time:9.4f}  {process.name}#{process.incarnation}", getattr(what, "__name__", what)
    if what == "on_message":
        sender, sender_incarnation, data, payload = detail
        carried = "" if payload is None else f" + {payload}"
        return f"{host} <- {sender}#{sender_incarnation}: {decode(data)}{carried}"
    return f"{host} {what}" + ("" if detail is None else f" {detail}")
