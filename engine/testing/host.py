"""A simulated host: the machine of every host and of its role, on virtual time, around a simulated body.

It stands where `runtime.host` stands in a real process: it delivers messages, carries out effects in their
order, and decides nothing. A body stands for arrays, threads and files: a few numbers, which take time. While
a body keeps the host's thread busy, messages wait as they do in a mailbox.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

from partita.engine.protocol.batch_messages import Command, Contribution, FetchPoint
from partita.engine.protocol.events import (
    Delivered,
    NotPersisted,
    Persist,
    Persisted,
    Received,
    Refuse,
    Send,
    Tick,
)
from partita.engine.protocol.host import (
    BuildRole,
    EndHost,
    HostMachine,
    HostMeasured,
    HostTimers,
    MeasureHost,
    Raised,
    Reach,
    RoleBuilt,
    RoleMachine,
)
from partita.engine.protocol.messages import Directory, Failed, Fetch, Message, Push, decode, encode
from partita.engine.protocol.names import COORDINATOR, backup_index
from partita.engine.protocol.watch_messages import HostReport, PresentWait, Traffic, Watch
from partita.engine.testing.disk import Damaged, Disk, File
from partita.engine.testing.invariants import ProcessId
from partita.engine.testing.scenario import Environment
from partita.engine.testing.world import Delivery, Process, World

TICK_S: Final = 0.7
"""Between two ticks of a host, and of a coordinator."""

TIMERS: Final = HostTimers(resend_s=TICK_S / 2)
LINK_S: Final = 3.0
"""The longest that a message waits in shared memory."""

BUILD_S: Final = 0.2
"""The longest that a task is set up."""

_WORK: Final = (Command, Contribution, Fetch, FetchPoint, Push)
"""The messages that a mute shard does not answer."""


class Launcher(Process):
    """The process of a coordinator, as far as its hosts know it.

    Attributes:
        hosts: the processes that it has launched, by (name, incarnation), in that order.
    """

    hosts: dict[ProcessId, Process]


class Setting(Protocol):
    """A schedule, as far as its hosts know it."""

    world: World
    disk: Disk
    environment: Environment

    def role(self, host: SimulatedHost) -> tuple[RoleMachine, SimulatedBody]:
        """Builds the task of a host: the role's machine, and the body around it."""

    def refused(self, receiver: Process, effect: Refuse) -> None:
        """Handles that a host refuses a message."""


class SimulatedBody(ABC):
    """The hands of a role: they carry out what its machine asks for, now or after some virtual time.

    Attributes:
        host: the process that it is in.
    """

    def __init__(self, host: SimulatedHost) -> None:
        self.host = host
        self._written_at = 0.0

    @abstractmethod
    def carry_out(self, effect: Any, event: Any) -> Any:
        """Carries out one effect of an event. Returns a result that is there at once, or None.

        It may keep the host's thread (`host.pause`), or report later (`host.result`), or raise in the user's
        name (`host.fail`).
        """

    def write(self, schedule: Setting, order: Persist, contents: object) -> None:
        """Writes a copy of the contents to a file, after those before it, and reports the end.

        The name holds the incarnation: a replaced process must not write over its successor's file.
        """
        host, world, environment = self.host, schedule.world, schedule.environment
        run, disk = host.coordinator.incarnation, schedule.disk
        path = f"{order.checkpoint}-{run}/{host.name}.{host.incarnation}"
        file = File(contents, order.version, f"{path} of version {order.version}")
        number = disk.begin(path, file)
        self._written_at = max(self._written_at, world.now + environment.write_s * world.random.random())
        wait_s = self._written_at - world.now
        if environment.is_full(world.random, world.now):
            host.result(wait_s, NotPersisted(order.checkpoint, order.version, "no space"))
        else:
            self._disk = disk
            host.later(wait_s, self.on_written, (order.checkpoint, path, number, file))

    def on_written(self, written: tuple[int, str, int, File]) -> None:
        """Puts a whole file on the disk."""
        checkpoint, path, number, file = written
        if self._disk.keep(path, number, file):
            self.host.on_event(Persisted(checkpoint, file.version, path, file.sha256))
        else:
            self.host.on_event(NotPersisted(checkpoint, file.version, "the disk was gone meanwhile"))

    def payload(self, send: Send) -> object:
        """Returns the numbers of a message's span."""
        raise AssertionError(f"{type(self).__name__} has no payload for {send}")

    def sends(self, send: Send) -> None:  # noqa: B027 - only some look
        """Looks at a message that leaves, for the checks of a schedule."""

    def handled(self, event: Any) -> None:  # noqa: B027
        """Looks at the role when all effects of an event were carried out, for the checks of a schedule."""


class SimulatedHost(Process):
    """The process of a part or a shard.

    Attributes:
        coordinator: that launched it.
        id: name and incarnation.
        checkpoint: the one that its task names; None: the start.
        from_backup: whether it starts from what its backup has, instead.
        machine: decides.
        body: of its role; None until its task has come.
    """

    def __init__(
        self, setting: Setting, coordinator: Launcher, process: ProcessId, checkpoint: int | None
    ) -> None:
        super().__init__(setting.world, *process)
        self._setting, self.coordinator = setting, coordinator
        self.id, self.checkpoint, self.from_backup = process, checkpoint, False
        self.machine = HostMachine(*process, endpoint=f"sim://{self.name}", versions={}, timers=TIMERS)
        self.body: SimulatedBody | None = None
        self._paused = self._tick_is_due = False
        self._inbox: deque[Any] = deque()  # what came while the thread was busy
        self._results: deque[Any] = deque()  # that were there at once
        self._rest: tuple[Any, Sequence[Any], int] = (None, [], 0)  # event, its effects, those carried out
        self._linked: deque[Delivery] = deque()  # in memory that peers share
        self._left: int | None = None  # messages until it crashes
        self.later(0.0, self.on_tick)

    # What happens to the process.

    def crash(self) -> None:
        """Ends the process at once, or in the middle of what it sends next."""
        if self.world.random.random() < 0.5:
            self.exit()
        else:
            self._left = self.world.random.randrange(4)

    def send(self, to: str, message: Message, payload: object = None) -> None:
        """Sends a message, unless the process crashes before."""
        self.transmits(to, message, payload)

    def transmits(self, to: str, message: Message, payload: object) -> bool:
        """Sends a message; returns whether the peer has it, see `Mailbox.send`."""
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self.exit()
                return False
        target = self.resolve(to)
        if target is None:
            return False
        if self.world.has_links and backup_index(to) is not None and isinstance(target, SimulatedHost):
            return target.link((self.name, self.incarnation, encode(message), payload))
        self.world.carry(self, target, message, payload)
        return False

    def link(self, delivery: Delivery) -> bool:
        """Takes a message into memory that the sender shares, if the process lives: nothing loses it."""
        if not self.alive:
            return False
        self._linked.append(delivery)
        self.later(LINK_S * self.world.links.random() ** 6, self.on_linked)
        return True

    def read_links(self) -> None:
        """Handles all in that memory: a directory may take out who has sent it."""
        while self._linked and self.alive:
            self.on_message(self._linked.popleft())

    def on_linked(self, _: object = None) -> None:
        """Handles the next message in that memory."""
        if self._linked:
            self.on_message(self._linked.popleft())

    def resolve(self, name: str) -> Process | None:
        """Finds a host in the newest directory that has arrived."""
        if name == COORDINATOR:
            return self.coordinator
        incarnation = self.machine.peers.get(name)
        return None if incarnation is None else self.coordinator.hosts.get((name, incarnation))

    def on_tick(self, _: object = None) -> None:
        """Gives the machine a tick, as soon as the thread is free."""
        self.later(TICK_S, self.on_tick)
        if self._paused:
            self._tick_is_due = True
        else:
            self._handle(Tick())

    def on_message(self, delivery: Delivery) -> None:
        """Gives the machine a message, in its turn."""
        sender, incarnation, data, payload = delivery
        message = decode(data)
        if isinstance(message, Directory):
            self.read_links()
        if self.mute and isinstance(message, _WORK):
            return
        event = Received(sender, incarnation, message, payload)
        if self._paused:
            self._inbox.append(event)
        else:
            self._handle(event)

    def on_event(self, event: Any) -> None:
        """Gives the machine an event, in its turn."""
        if self._paused:
            self._inbox.append(event)
        else:
            self._handle(event)

    # What a body asks for.

    def pause(self, seconds: float) -> None:
        """Keeps the thread busy: the next effect is carried out, and the next event handled, after that."""
        self._paused = True
        self.later(seconds, self.on_resumed)

    def result(self, wait_s: float, event: Any) -> None:
        """Reports a result of the body to the machine after some time; messages are handled meanwhile."""
        self.later(wait_s, self.on_event, event)

    def fail(self, reason: str) -> None:
        """Reports that the user's function has raised here."""
        self.on_event(Raised(Failed(reason, f"traceback of {self.name}")))

    # The interpreter.

    def on_resumed(self, _: object) -> None:
        """Goes on with the effects that are left, then with the events that came meanwhile."""
        self._paused = False
        self._perform(*self._rest)
        if self._tick_is_due and not self._paused and self.alive:
            self._tick_is_due = False
            self._handle(Tick())
        while self._inbox and not self._paused and self.alive:
            self._handle(self._inbox.popleft())

    def _handle(self, event: Any) -> None:
        effects = self.machine.receive(event, self.clock)
        if effects:
            self._perform(event, effects, 0)

    def _perform(self, event: Any, effects: Sequence[Any], first: int) -> None:
        for n in range(first, len(effects)):
            effect = effects[n]
            result = self._transmit(effect) if isinstance(effect, Send) else self._carry_out(effect, event)
            if result is not None:
                self._results.append(result)
            if self._paused:
                self._rest = event, effects, n + 1
                return
            if not self.alive:
                return
        if self.body is not None:
            self.body.handled(event)
        self.machine.validate()
        while self._results and not self._paused and self.alive:
            self._handle(self._results.popleft())

    def _transmit(self, send: Send) -> Delivered | None:
        if not self.machine.may_send(send.message, self.clock):
            return None
        payload = None
        if self.body is not None:
            self.body.sends(send)
            payload = send.forwarded if send.payload is None else self.body.payload(send)
        is_delivered = self.transmits(send.to, send.message, payload)
        return Delivered(send.to, send.message) if is_delivered and send.reports else None

    def _carry_out(self, effect: Any, event: Any) -> Any:
        match effect:
            case BuildRole():
                self.pause(BUILD_S * self.world.random.random())
                try:
                    machine, self.body = self._setting.role(self)
                except Damaged as error:  # a process of a run that is over: the next one has an older file
                    return Raised(Failed(f"{error} is damaged", ""))
                return RoleBuilt(machine)
            case MeasureHost(watch=watch, waits=waits, staleness=staleness):
                return HostMeasured(_measured(watch, waits, staleness, self.clock))
            case EndHost():
                self.exit()
            case Reach():
                pass
            case Refuse():
                self._setting.refused(self, effect)
            case _:
                assert self.body is not None, effect
                return self.body.carry_out(effect, event)
        return None


def _measured(
    watch: Watch, waits: tuple[PresentWait, ...], staleness: tuple[int, ...], now: float
) -> HostReport:
    """The report of a host that takes no time, has no memory and records no step."""
    return HostReport(watch.sent_s, now, now, 0, 1, 0, None, 0.0, Traffic(), 0, staleness, waits)


class Numbers(tuple[float, ...]):
    """A payload: numbers that report how many bytes they would take as float32."""

    __slots__ = ()

    @property
    def n_bytes(self) -> int:
        """Four bytes for each number."""
        return 4 * len(self)
