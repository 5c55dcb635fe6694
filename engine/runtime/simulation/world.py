"""Virtual time: one heap of (time, counter), and processes that live, freeze and die on it.

No thread, no wall clock, no set order and no `id()`: the same seed gives the same history in any process.
It must not know what the processes do.
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
"""A message on its way: sender, the sender's incarnation, encoded message, payload."""

Occurrence: TypeAlias = tuple[float, str, int, str, Any]
"""What happened: time, host, incarnation, handler, argument."""

_LAST_EVENTS = 60


class Process(ABC):
    """One process on the simulated network: memory that a crash takes away, and a clock of its own."""

    def __init__(self, world: World, name: str, incarnation: int) -> None:
        self.world = world
        self.name = name
        self.incarnation = incarnation
        self.alive = True
        self.frozen = False
        self.mute = False  # a shard that goes on beating, and does none of its work
        self.offset = 1000.0 * world.random.random()
        self.backlog: list[tuple[Callable[[Any], None], Any]] = []
        world.processes.append(self)

    @property
    def clock(self) -> float:
        """Its own monotonic clock (seconds)."""
        return self.world.now + self.offset

    def later(self, wait_s: float, handler: Callable[[Any], None], argument: object = None) -> None:
        """Calls this method of its own after a while, if it still lives."""
        self.world.at(self.world.now + wait_s, self, handler, argument)

    def send(self, to: str, message: Message, payload: object = None) -> None:
        """Gives a message to the network, for whatever process it knows under this name."""
        target = self.resolve(to)
        if target is not None:
            self.world.carry(self, target, message, payload)

    @abstractmethod
    def resolve(self, name: str) -> Process | None:
        """The process that this one takes for the host of this name."""

    @abstractmethod
    def on_message(self, delivery: Delivery) -> None:
        """A message has arrived."""

    def freeze(self) -> None:
        """SIGSTOP: what happens to it waits."""
        self.frozen = True

    def thaw(self, _: object = None) -> None:
        """SIGCONT: what has waited happens, all at once."""
        if self.frozen:
            self.frozen = False
            backlog, self.backlog = self.backlog, []
            for handler, argument in backlog:
                self.world.at(self.world.now, self, handler, argument)

    def crash(self) -> None:
        """SIGKILL: it ends wherever it is."""
        self.exit()

    def exit(self) -> None:
        """It ends; nothing that it remembered is left."""
        if self.alive:
            self.alive = False
            self.world.exited(self)


class World:
    """The clock, the processes and the network of one schedule.

    Attributes:
        now: virtual time in seconds.
        random: the schedule's only source of randomness.
        processes: all that were ever launched, in that order.
    """

    def __init__(self, seed: int, *, keep_all: bool = False) -> None:
        """A world without processes; `keep_all` remembers its whole history, not only the end of it."""
        self.now = 0.0
        self.random = Random(seed)
        self.processes: list[Process] = []
        self.network: SimulatedNetwork
        self.events = 0
        self.over = False
        self.when_exited: Callable[[Process], None] = lambda process: None
        self.history: deque[Occurrence] = deque(maxlen=None if keep_all else _LAST_EVENTS)
        self._heap: list[tuple[float, int, Process | None, Callable[[Any], None], Any]] = []
        self._counter = 0

    def at(
        self, time: float, process: Process | None, handler: Callable[[Any], None], argument: object
    ) -> None:
        """Calls `handler(argument)` then, if the process lives; at once when it thaws, if it is frozen."""
        self._counter += 1
        heapq.heappush(self._heap, (time, self._counter, process, handler, argument))

    def carry(self, source: Process, target: Process, message: Message, payload: object) -> None:
        """Sends a message over the faulty network."""
        delivery = (source.name, source.incarnation, encode(message), payload)
        for arrival in self.network.arrivals(source.name, target.name, self.now):
            self.at(arrival, target, target.on_message, delivery)

    def living(self, name: str) -> list[Process]:
        """The processes of this name that have not ended, in the order of their launch."""
        return [process for process in self.processes if process.alive and process.name == name]

    def exited(self, process: Process) -> None:
        """A process has ended."""
        self.when_exited(process)

    def run(self, until: float) -> bool:
        """Plays events in order until `over` is set; False when time runs out before."""
        heap, history = self._heap, self.history
        while heap and not self.over:
            time, _, process, handler, argument = heapq.heappop(heap)
            if time > until:
                return False
            self.now = time
            if process is not None:
                if not process.alive:
                    continue
                if process.frozen:
                    process.backlog.append((handler, argument))
                    continue
                history.append((time, process.name, process.incarnation, handler.__name__, argument))
            self.events += 1
            handler(argument)
        return self.over

    def note(self, process: Process, what: str, detail: object) -> None:
        """Adds a line to the history."""
        self.history.append((self.now, process.name, process.incarnation, what, detail))

    def story(self) -> list[str]:
        """The remembered history as lines, newest last."""
        return [_line(occurrence) for occurrence in self.history]


def _line(occurrence: Occurrence) -> str:
    time, name, incarnation, what, detail = occurrence
    host = f"{time:9.4f}  {name}#{incarnation}"
    if what == "on_message":
        sender, sender_incarnation, data, payload = detail
        carried = "" if payload is None else f" + {payload}"
        return f"{host} <- {sender}#{sender_incarnation}: {decode(data)}{carried}"
    return f"{host} {what}" + ("" if detail is None else f" {detail}")
