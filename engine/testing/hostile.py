"""Hostile members of a schedule: processes with a known key that send `forged` frames beside their own.

What must hold: a frame that no correct host sends is refused and changes nothing; a receiver that has refused
several takes nothing more of that process, and the coordinator replaces it (C1 to C5). The checks of the
driver go on: nobody else's promise is broken, and the run comes to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from partita.engine.protocol import messages as m
from partita.engine.protocol.conduct import BURST, MOST_ACCUSED, MOST_REFUSED, RATE_S
from partita.engine.protocol.coordinator_effects import Restart, Warn
from partita.engine.protocol.events import Refuse
from partita.engine.protocol.host import HostPhase
from partita.engine.protocol.host_lifecycle import Phase
from partita.engine.protocol.names import COORDINATOR
from partita.engine.testing.forging import KINDS, Forged, Frame, Sent
from partita.engine.testing.host import SimulatedHost
from partita.engine.testing.invariants import ProcessId, require
from partita.engine.testing.world import Process

if TYPE_CHECKING:
    from partita.engine.testing.schedule import CoordinatorHost, Schedule

Delivery = tuple[str, int, Frame]
"""A frame that arrives: sender, the sender's incarnation, frame."""

REPLACED_WITHIN_S: Final = 20.0
"""Seconds, in a network that works, within which a host that another one has cut off is replaced."""

MOST_EFFECTS: Final = 3
"""Effects of a frame that is refused: the refusal, its report, and whose messages are taken from now on."""

_FLOOD: Final = "flood"
_MOST_REMEMBERED: Final = 60  # messages of a process, to make frames from


class WatchedHost(SimulatedHost):
    """The process of a host in a schedule with hostile members; it may be one, and receives their frames."""

    def __init__(self, schedule: Schedule, *arguments: Any) -> None:
        super().__init__(schedule, *arguments)
        assert schedule.hostility is not None
        self.hostility: Final = schedule.hostility
        self.sent: list[Sent] = []

    @override
    def transmits(self, to: str, message: m.Message, payload: object) -> bool:
        if len(self.sent) < _MOST_REMEMBERED:
            self.sent.append((to, message, payload))
        return super().transmits(to, message, payload)

    def on_hostile(self, kind: str) -> None:
        """Sends a frame that no correct process sends."""
        self.hostility.send_frame(self, kind)

    def on_forged(self, delivery: Delivery) -> None:
        """Gives the machine a frame, in its turn."""
        sender, incarnation, frame = delivery
        self.read_links()  # what the sender has sent before
        self.on_event(frame.arrived(sender, incarnation))

    @override
    def _handle(self, event: Any) -> None:
        is_forged = type(event) is Forged
        if is_forged and self.machine.peers.get(event.sender) != event.incarnation:
            return  # a transport takes messages of the processes in the directory alone
        effects = self.machine.receive(event, self.clock)
        if is_forged:
            self.hostility.handled(self, event, effects)
        if effects:
            self._perform(event, effects, 0)


class Hostility:
    """The hostile members of a schedule, and what their frames have brought about.

    Attributes:
        frames: how many were handled.
        cut_off: how many hostile processes a host or the coordinator has cut off.
    """

    def __init__(self, schedule: Schedule, random: Random) -> None:
        self._schedule, self._world, self._random = schedule, schedule.world, random
        self._members: dict[ProcessId, None] = {}
        self._refusals: dict[tuple[Process, ProcessId], int] = {}
        self._accusations: dict[ProcessId, set[str]] = {}
        self.frames = self.cut_off = 0

    def plan(self) -> None:
        """Draws when members are hostile."""
        random, world = self._random, self._world
        for _ in range(random.choice((1, 1, 2, 3))):
            world.at(random.uniform(0.2, self._schedule.environment.chaos_s), None, self._begin, None)

    # What hostile members do.

    def _begin(self, _: object) -> None:
        coordinator, random = self._schedule.coordinator, self._random
        hosts = [
            one
            for one in self._world.processes
            if isinstance(one, WatchedHost) and one.alive and one.coordinator is coordinator
        ]
        if not hosts:
            return
        host = random.choice(hosts)
        self._members[host.id] = None
        kind = _FLOOD if random.random() < 0.03 else random.choice((*KINDS, "of all kinds"))
        self._world.note(host, "is hostile:", kind)
        if kind == _FLOOD:
            self._flood(host)
            return
        within_s = random.choice((0.0, 0.2, 2.0))
        for _ in range(random.choice((1, 5, 15, 40))):
            wait_s = within_s * random.random()
            self._world.at(self._world.now + wait_s, host, host.on_hostile, kind)

    def send_frame(self, host: WatchedHost, kind: str) -> None:
        """Sends a frame of a member to a host that it knows."""
        random = self._random
        to = random.choice([COORDINATOR, *host.machine.peers])
        forge = KINDS.get(kind) or random.choice(list(KINDS.values()))
        frame = forge(host, to, random) or KINDS["malformed"](host, to, random)
        assert frame is not None
        target: Any = host.resolve(frame.to)
        if target is None:
            return
        delivery = (*host.id, frame)
        for arrival in self._world.network.arrivals(host.name, frame.to, self._world.now):
            self._world.at(arrival, target, target.on_forged, delivery)

    def _flood(self, host: WatchedHost) -> None:
        """Sends the coordinator more messages without work than are allowed, all at once."""
        coordinator: Any = host.coordinator
        if host.machine.phase is not HostPhase.AT_WORK:
            return
        data, now, seconds = m.encode(m.DirectoryAck(0)), self._world.now, self._world.now + 10.0
        for _ in range(BURST + int(RATE_S * seconds) + MOST_REFUSED + 1):
            self._world.at(now, coordinator, coordinator.on_forged, (*host.id, Frame(COORDINATOR, data)))
        self._world.at(now, coordinator, self._is_over, host)

    def _is_over(self, host: WatchedHost) -> None:
        coordinator = self._schedule.coordinator
        if host.coordinator is coordinator and self.is_at_work(coordinator, host.id):
            cut = self._is_cut(coordinator, host.id)
            require(cut, "C1", "the coordinator takes a flood of", host.id)

    # What follows.

    def is_member(self, process: ProcessId) -> bool:
        """Returns whether this process has been hostile."""
        return process in self._members

    def is_hostile(self, name: str) -> bool:
        """Returns whether a process of this name has been hostile."""
        return any(one == name for one, _ in self._members)

    def handled(
        self, receiver: Any, event: Forged, effects: Sequence[Any], *, was_at_work: bool = True
    ) -> None:
        """Looks at what a frame has brought about; `was_at_work`: its sender was a host of the run."""
        self.frames += 1
        sender, is_refused = (event.sender, event.incarnation), any(isinstance(e, Refuse) for e in effects)
        if not was_at_work:
            return
        cut, of_host = self._is_cut(receiver, sender), receiver.name != COORDINATOR
        self._accuses(sender, event, effects)
        require(not (cut and is_refused), "C1", receiver.name, "goes on with frames of", sender)
        missed = event.must_refuse and not (cut or is_refused)
        require(not missed, "C2", receiver.name, "takes of", sender, "what it may not send:", event.message)
        much = of_host and is_refused and len(effects) > MOST_EFFECTS
        require(not much, "C4", receiver.name, "does much for a frame of", sender, *effects)
        if is_refused:
            self._counts(receiver, sender)

    def _counts(self, receiver: Process, sender: ProcessId) -> None:
        key = receiver, sender
        self._refusals[key] = self._refusals.get(key, 0) + 1
        if self._refusals[key] == MOST_REFUSED:
            self.cut_off += 1
            world, healed = self._world, self._schedule.environment.chaos_s
            world.at(max(world.now, healed) + REPLACED_WITHIN_S, receiver, self._must_be_replaced, key)

    def _is_cut(self, receiver: Process, sender: ProcessId) -> bool:
        return self._refusals.get((receiver, sender), 0) >= MOST_REFUSED

    @staticmethod
    def is_at_work(coordinator: CoordinatorHost, sender: ProcessId) -> bool:
        """Returns whether a process is the newest of a host of this coordinator's run."""
        machine = coordinator.machine
        return machine.phase is not Phase.OVER and machine.registry.current(*sender) is not None

    def _must_be_replaced(self, key: tuple[Process, ProcessId]) -> None:
        """Requires that a host that was cut off has been replaced, or is not needed any more (C3)."""
        (receiver, sender), coordinator = key, self._schedule.coordinator
        if receiver is not coordinator:
            is_current = coordinator.hosts.get((receiver.name, receiver.incarnation)) is receiver
            if not is_current or not self.is_at_work(coordinator, (receiver.name, receiver.incarnation)):
                return
        there = self.is_at_work(coordinator, sender)
        require(not there, "C3", sender, "was cut off by", receiver.name, "and is not replaced")

    def _accuses(self, sender: ProcessId, event: Forged, effects: Sequence[Any]) -> None:
        """Requires that a member has few others replaced by accusations (C5)."""
        if not isinstance(event.message, m.Refused):
            return
        texts = [one.text if isinstance(one, Warn) else one.reason for one in effects if _is_text(one)]
        if any(f"cut off by {sender[0]}:" in text for text in texts):
            found = self._accusations.setdefault(sender, set())
            found.add(event.message.by)
            require(len(found) <= MOST_ACCUSED, "C5", sender, "has others cut off:", sorted(found))


def _is_text(effect: object) -> bool:
    return isinstance(effect, (Warn, Restart))
