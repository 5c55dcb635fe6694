"""Simulated hosts: the duties of every host towards the coordinator, and those of every part and shard.

These are stand-ins for the real hosts of the runtime. A driver's folder adds its own parts and shards.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from partita.engine.protocol.events import (
    NotPersisted,
    Persist,
    Persisted,
    Received,
    Refuse,
    Replaced,
    Span,
    Tick,
)
from partita.engine.protocol.messages import (
    Command,
    Contribution,
    Directory,
    DirectoryAck,
    Failed,
    Fetch,
    FetchPoint,
    Heartbeat,
    Hello,
    Message,
    Peer,
    Push,
    Ready,
    SetUp,
    Stop,
    decode,
)
from partita.engine.protocol.names import COORDINATOR, part_indices
from partita.engine.protocol.shard_client import Install, Stage, Started, SwapBuffers
from partita.engine.protocol.stall_detector import StallDetector
from partita.engine.testing.disk import File
from partita.engine.testing.invariants import ProcessId, Violation
from partita.engine.testing.schedule import TICK_S, CoordinatorHost, Schedule
from partita.engine.testing.world import Delivery, Process

RETRY_S: Final = 1.0
_WORK: Final = (Command, Contribution, Fetch, FetchPoint, Push)
"""The messages that a mute shard does not answer."""


class Numbers(tuple[float, ...]):
    """A payload: numbers that report how many bytes they would take as float32."""

    __slots__ = ()

    @property
    def n_bytes(self) -> int:
        """Four bytes for each number."""
        return 4 * len(self)


class Host(Process):
    """A part's or a shard's process, up to the point where its machine takes over."""

    schedule: Schedule
    coordinator: CoordinatorHost

    def __init__(
        self, schedule: Schedule, coordinator: CoordinatorHost, process: ProcessId, checkpoint: int | None
    ) -> None:
        super().__init__(schedule.world, *process)
        self.schedule, self.coordinator = schedule, coordinator
        self.id, self.checkpoint = process, checkpoint
        self.assigned = False
        self.ready = False
        self.acknowledged = False  # the coordinator has received Ready
        self.revision = 0
        self.addresses: dict[str, Peer] = {}
        self.peers: dict[str, int] = {}
        self.stuck = StallDetector()
        self._left: int | None = None  # messages until it crashes
        self.later(0.0, self.on_tick)

    def crash(self) -> None:
        """Ends the process at once, or in the middle of what it sends next."""
        if self.world.random.random() < 0.5:
            self.exit()
        else:
            self._left = self.world.random.randrange(4)

    def send(self, to: str, message: Message, payload: object = None) -> None:
        """Sends a message, unless the process crashes before."""
        if self._left == 0:
            self.exit()
        elif self._left is not None:
            self._left -= 1
        if self.alive:
            super().send(to, message, payload)

    def resolve(self, name: str) -> Process | None:
        """Finds a host in the newest directory that has arrived."""
        if name == COORDINATOR:
            return self.coordinator
        incarnation = self.peers.get(name)
        return None if incarnation is None else self.coordinator.hosts.get((name, incarnation))

    def on_tick(self, _: object = None) -> None:
        """Repeats what was not answered."""
        self.later(TICK_S, self.on_tick)
        if not self.assigned:
            self.send(COORDINATOR, Hello(f"sim://{self.name}", {}))
        elif self.ready and not self.acknowledged:
            self.send(COORDINATOR, Ready())
        if self.assigned:
            self.tick()

    def on_message(self, delivery: Delivery) -> None:
        """Handles the messages of every host; the others go to the machine."""
        sender, incarnation, data, payload = delivery
        message = decode(data)
        if isinstance(message, Directory):
            self._update_peers(message)
        elif isinstance(message, SetUp):
            if not self.assigned:
                self.assigned = True
                self.assign()
                self.later(0.2 * self.world.random.random(), self.on_prepared)
        elif isinstance(message, Stop):
            self.exit()
        elif self.assigned:
            if isinstance(message, Heartbeat):
                self.acknowledged = True
            if self.mute and isinstance(message, _WORK):
                return
            self.receive(Received(sender, incarnation, message, payload))

    def on_prepared(self, _: object) -> None:
        """Reports that everything is compiled."""
        self.ready = True
        self.send(COORDINATOR, Ready())

    def _update_peers(self, directory: Directory) -> None:
        if directory.applies_to(self.revision):
            self.revision, self.addresses = directory.revision, directory.applied_to(self.addresses)
            before, self.peers = self.peers, {name: peer.incarnation for name, peer in self.addresses.items()}
            for name, incarnation in self.peers.items():
                if incarnation > before.get(name, 0) and self.assigned:
                    self.peer_replaced(Replaced(name, incarnation))
            self.peers_changed()
        self.send(COORDINATOR, DirectoryAck(self.revision))

    @abstractmethod
    def assign(self) -> None:
        """Makes the machine: the task has arrived."""

    @abstractmethod
    def tick(self) -> None:
        """Gives the machine a tick."""

    @abstractmethod
    def receive(self, received: Received) -> None:
        """Handles a message for the machine."""

    def peer_replaced(self, replaced: Replaced) -> None:
        """Handles the replacement of another host."""

    def peers_changed(self) -> None:
        """Handles a new directory."""


class PartHost(Host):
    """A part: vectors of its machine's numbers, and a driver's client."""

    def assign(self) -> None:
        """Makes vectors of zeros, and the client."""
        indices = part_indices(self.name)
        assert indices is not None
        self.replica, self.machine = indices
        self.spans = self.schedule.layout.of_machine[self.machine]
        n = sum(stop - start for _, start, stop in self.spans)
        names = ("parameters", "staged", "accumulated", "in_flight")
        self.vectors = {name: [0.0] * n for name in names}
        self.started = False

    def report_waits(self, at: object, shards: Sequence[str]) -> None:
        """Reports the shards that have not answered for long."""
        for waits in self.stuck.look(at, [(shard, "an answer") for shard in shards], self.clock):
            self.send(COORDINATOR, waits)

    def peers_changed(self) -> None:
        """Starts the client as soon as the others can be reached."""
        if self.assigned and not self.started and self.knows_peers:
            self.started = True
            self.do(Started())

    def on_prepared(self, _: object) -> None:
        """Reports that everything is compiled, and starts the client."""
        super().on_prepared(_)
        self.peers_changed()

    @property
    def knows_peers(self) -> bool:
        """Whether the hosts that the client needs can be reached."""
        return self.revision > 0

    def raises(self) -> bool:
        """Whether the user's function raises now, which ends the process."""
        raises = self.schedule.raises(self.name)
        if raises:
            self.send(COORDINATOR, Failed("the user's function raised", f"traceback of {self.name}"))
            self.exit()
        return raises

    def carry_out(self, effect: object) -> None:
        """Carries out an effect that the clients of all drivers have."""
        match effect:
            case Stage(span=Span(start=start, stop=stop), payload=Numbers() as numbers):
                self.vectors["staged"][start:stop] = numbers
            case Install(span=Span(start=start, stop=stop)):
                self.vectors["parameters"][start:stop] = self.vectors["staged"][start:stop]
            case SwapBuffers(span=Span(start=start, stop=stop)):
                self.vectors["in_flight"][start:stop] = self.vectors["accumulated"][start:stop]
                self.vectors["accumulated"][start:stop] = [0.0] * (stop - start)
            case Refuse(sender=sender, reason=reason):
                raise Violation(f"S5: {self.name} refuses what {sender} sent: {reason}")
            case _:
                raise AssertionError(effect)

    @abstractmethod
    def do(self, event: Any) -> None:
        """Gives the client an event, and carries out its effects."""


class ShardHost(Host):
    """A shard: a driver's machine, and files that are written one after the other."""

    def tick(self) -> None:
        """Gives the machine a tick."""
        self.do(Tick())

    def receive(self, received: Received) -> None:
        """Gives the machine a message."""
        self.do(received)

    def assign(self) -> None:
        """Begins with no file being written."""
        self.written_at = 0.0

    def persist(self, order: Persist, contents: object) -> None:
        """Writes a copy of the contents to a file, which is on disk later.

        The name holds the incarnation: a replaced process must not write over its successor's file.
        """
        name = f"{order.checkpoint}/{self.name}.{self.incarnation}"
        file = File(contents, order.version, f"{name} of run {self.coordinator.incarnation}")
        self.schedule.disk.folders.add(order.checkpoint)
        environment, random = self.schedule.environment, self.world.random
        self.written_at = max(self.written_at, self.world.now + environment.write_s * random.random())
        wait_s = self.written_at - self.world.now
        if environment.is_full(random, self.world.now):
            self.later(wait_s, self.do, NotPersisted(order.checkpoint, order.version, "no space"))
        else:
            self.later(wait_s, self.on_written, (order.checkpoint, name, file))

    def on_written(self, written: tuple[int, str, File]) -> None:
        """Puts a whole file on the disk."""
        checkpoint, name, file = written
        self.schedule.disk.files[name] = file
        self.do(Persisted(checkpoint, file.version, name, file.sha256))

    @abstractmethod
    def do(self, event: Any) -> None:
        """Gives the machine an event, and carries out its effects."""
