"""What every simulated host does around its machine: say hello, learn who is where, and stay alive.

These are stand-ins for the real hosts of the runtime, with the same duties towards the machines. What a part
and a shard add stands with their driver, and what a coordinator does in `coordinator`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from partita.engine.protocol.events import Received, Replaced
from partita.engine.protocol.messages import (
    Command,
    Contribution,
    Directory,
    DirectoryAck,
    Fetch,
    FetchPoint,
    Heartbeat,
    Hello,
    Message,
    Push,
    Ready,
    SetUp,
    Stop,
    decode,
)
from partita.engine.protocol.names import COORDINATOR, Topology
from partita.engine.protocol.stall_detector import StallDetector
from partita.engine.runtime.simulation.judgement import Life
from partita.engine.runtime.simulation.world import Delivery, Process, World

TICK_S: Final = 0.7
HEARTBEAT_S: Final = 0.69
RETRY_S: Final = 1.0
_WORK: Final = (Command, Contribution, Fetch, FetchPoint, Push)
"""What a mute shard does not answer."""


class Numbers(tuple[float, ...]):
    """A payload: numbers that say how many bytes they would be as float32."""

    __slots__ = ()

    @property
    def n_bytes(self) -> int:
        """Bytes."""
        return 4 * len(self)


class Layout:
    """Who holds which numbers: the global vector is cut into nearly equal runs, one for each shard."""

    def __init__(self, machines: Sequence[int], topology: Topology) -> None:
        """For machines with so many numbers each."""
        size, shards = sum(machines), topology.shards
        cuts = [shard * size // shards for shard in range(shards + 1)]
        self.sizes = {name: cuts[k + 1] - cuts[k] for k, name in enumerate(topology.shard_names)}
        self.of_machine: list[tuple[tuple[str, int, int], ...]] = []
        self.of_shard: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in self.sizes}
        first = 0
        for machine, n in enumerate(machines):
            spans = []
            for k, name in enumerate(topology.shard_names):
                start, stop = max(first, cuts[k]), min(first + n, cuts[k + 1])
                if start < stop:
                    spans.append((name, start - first, stop - first))
                    self.of_shard[name][machine] = (start - cuts[k], stop - cuts[k])
            self.of_machine.append(tuple(spans))
            first += n


class Run:
    """The hosts that one coordinator has launched: they hear one another, and nobody of another run.

    Attributes:
        coordinator: its process.
        hosts: by (name, incarnation), in the order of their launch.
    """

    def __init__(self, coordinator: Process) -> None:
        self.coordinator = coordinator
        self.hosts: dict[Life, Process] = {}


class Host(Process):
    """A part's or a shard's process, up to the point where its machine takes over."""

    def __init__(self, world: World, run: Run, life: Life, checkpoint: int | None) -> None:
        super().__init__(world, *life)
        self.run = run
        self.checkpoint = checkpoint
        self.life: Life = life
        self.assigned = False
        self.ready = False
        self.heard_heartbeat = False
        self.revision = 0
        self.peers: dict[str, int] = {}
        self.stuck = StallDetector()
        self._left: int | None = None  # messages until it crashes
        self.later(0.0, self.on_tick)

    def crash(self) -> None:
        """At once, or in the middle of what it sends next."""
        if self.world.random.random() < 0.5:
            self.exit()
        else:
            self._left = self.world.random.randrange(4)

    def send(self, to: str, message: Message, payload: object = None) -> None:
        """Sends, if it comes to that."""
        if self._left == 0:
            self.exit()
        elif self._left is not None:
            self._left -= 1
        if self.alive:
            super().send(to, message, payload)

    def resolve(self, name: str) -> Process | None:
        """By the directory that it has."""
        if name == COORDINATOR:
            return self.run.coordinator
        incarnation = self.peers.get(name)
        return None if incarnation is None else self.run.hosts.get((name, incarnation))

    def on_tick(self, _: object = None) -> None:
        """Says again what was not answered."""
        self.later(TICK_S, self.on_tick)
        if not self.assigned:
            self.send(COORDINATOR, Hello(f"sim://{self.name}", {}))
        elif self.ready and not self.heard_heartbeat:
            self.send(COORDINATOR, Ready())
        if self.assigned:
            self.tick()

    def on_message(self, delivery: Delivery) -> None:
        """What every host understands; the rest is its machine's."""
        sender, incarnation, data, payload = delivery
        message = decode(data)
        if isinstance(message, Directory):
            self._learn(message)
        elif isinstance(message, SetUp):
            if not self.assigned:
                self.assigned = True
                self.assign()
                self.later(0.2 * self.world.random.random(), self.on_prepared)
        elif isinstance(message, Stop):
            self.exit()
        elif self.assigned:
            if isinstance(message, Heartbeat):
                self.heard_heartbeat = True
            if self.mute and isinstance(message, _WORK):
                return
            self.hear(sender, message, Received(sender, incarnation, message, payload))

    def on_end(self, _: object) -> None:
        """Somebody ends it: it works for nobody any more."""
        self.exit()

    def on_prepared(self, _: object) -> None:
        """Everything is compiled."""
        self.ready = True
        self.send(COORDINATOR, Ready())

    def _learn(self, directory: Directory) -> None:
        if directory.revision > self.revision:
            self.revision = directory.revision
            before, self.peers = self.peers, {peer.name: peer.incarnation for peer in directory.peers}
            for name, incarnation in self.peers.items():
                if incarnation > before.get(name, 0):
                    self.learn(Replaced(name, incarnation))
            self.learned()
        self.send(COORDINATOR, DirectoryAck(self.revision))

    def say_waits(self, at: object, shards: Sequence[str]) -> None:
        """Says for which shards it waits, if that takes long."""
        for waits in self.stuck.look(at, [(shard, "an answer") for shard in shards], self.clock):
            self.send(COORDINATOR, waits)

    @abstractmethod
    def assign(self) -> None:
        """The task is here: make the machine."""

    @abstractmethod
    def tick(self) -> None:
        """Time passes for the machine."""

    @abstractmethod
    def hear(self, sender: str, message: Message, received: Received) -> None:
        """A message for the machine."""

    def learn(self, replaced: Replaced) -> None:
        """A host has been replaced."""

    def learned(self) -> None:
        """The directory is new."""
