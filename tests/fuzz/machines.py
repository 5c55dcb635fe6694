"""Machines of every role, to which members send any message, of any kind and with any payload."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from partita.engine import Sandblaster
from partita.engine.protocol import PointLinks, Shard, ShardRanges, SumThenContinue
from partita.engine.protocol.assigned_work import AssignedWork
from partita.engine.protocol.conduct import Conduct
from partita.engine.protocol.coordinator_effects import Misbehaved
from partita.engine.protocol.events import Received, Refuse, Tick
from partita.engine.protocol.host import HostMachine, HostPhase, RoleBuilt, RoleMachine
from partita.engine.protocol.host_lifecycle import Phase
from partita.engine.protocol.messages import (
    Directory,
    Fetch,
    Heartbeat,
    Malformed,
    MalformedMessage,
    Message,
    Peer,
    SetUp,
    decode,
)
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.part import Part
from partita.engine.protocol.permissions import rejection_reason
from tests.fuzz.corpus import MESSAGES, drawn, mutated
from tests.protocol.coordinating import Run
from tests.protocol.machines import RANGES, SHARDS, shard
from tests.protocol.test_hostile_members import in_an_evaluation

MEMBERS: Final = ("part 0.0", "part 0.1", "part 1.0", "shard 0", "shard 1", "shard 2")
PAYLOADS: Final = (None, b"", bytes(8), bytes(12), bytes(20))
_LIFE: Final = 300
"""Messages to one machine; then another one takes its place."""


def _points() -> RoleMachine:
    return Part(Sandblaster().replica, AssignedWork(PointLinks(streams=SHARDS), alone=False))


def _sums() -> RoleMachine:
    own = ShardRanges("shard 0", 0, RANGES)
    return Shard(own, SumThenContinue(own, unit_size=2))


ROLES: Final[dict[str, tuple[str, Callable[[], RoleMachine]]]] = {
    "shard": ("shard 0", shard),
    "shard of vectors": ("shard 0", _sums),
    "part of points": ("part 0.0", _points),
}


def message_of(random: Random) -> Message | Malformed:
    """Returns a message as it arrives."""
    data = drawn(MESSAGES, random)
    try:
        return decode(mutated(data, random) if random.random() < 0.3 else data)
    except MalformedMessage as error:
        return Malformed(str(error))


class Hosts:
    """Hosts of every role at work, and all others. Nobody is cut off, or little would come through."""

    def __init__(self) -> None:
        self.refused = self.taken = 0
        self._left, self._now = 0, 0.0

    def _replace(self, random: Random) -> None:
        self._name, role = ROLES[random.choice(tuple(ROLES))]
        self._host = HostMachine(self._name, 0, endpoint="sim://host", versions={})
        self._host._conduct = Conduct(frozenset((*MEMBERS, COORDINATOR)))
        peers = tuple(Peer(name, 0, f"sim://{name}", "") for name in MEMBERS if name != self._name)
        self._give(Received(COORDINATOR, 0, SetUp("run")))
        self._give(RoleBuilt(role()))
        self._give(Received(COORDINATOR, 0, Directory(peers, 1)))
        self._give(Received(COORDINATOR, 0, Heartbeat(0, clock=self._now)))
        assert self._host.phase is HostPhase.AT_WORK
        self._left = _LIFE

    def _give(self, event: Any) -> None:
        effects = self._host.receive(event, self._now)
        is_refused = any(isinstance(effect, Refuse) for effect in effects)
        self.refused += is_refused
        self.taken += bool(effects) and not is_refused
        self._host.validate()

    def feed(self, random: Random) -> int:
        if not self._left or self._host.phase is HostPhase.ENDED:
            self._replace(random)
        self._left -= 1
        self._now += random.choice((0.0, 0.0, 0.01, 0.3))
        sender = random.choice((COORDINATOR, *MEMBERS)) if random.random() < 0.5 else random.choice(MEMBERS)
        self._give(Received(sender, 0, message_of(random), random.choice(PAYLOADS)))
        if random.random() < 0.05:
            self._give(Tick())
        return 1

    def check(self) -> None:
        assert self.taken > 0 and self.refused > self.taken / 100
        self._replace(Random(0))
        assert rejection_reason(Fetch(0), sender="part 0.0", receiver="shard 0") is None

    def close(self) -> None:
        pass


class Coordinators:
    """Coordinators of a Downpour and of a Sandblaster run at work, and their hosts."""

    def __init__(self) -> None:
        self.refused = self.taken = 0
        self._left = 0

    def _replace(self, random: Random) -> None:
        if random.random() < 0.5:
            run = Run().start()
            self._machine, self._now = run.machine, run.now
        else:
            stage = in_an_evaluation()
            self._machine, self._now = stage.coordinator, stage.now
        self._machine._conduct = Conduct(frozenset(self._machine.registry.hosts))
        self._left = _LIFE

    def feed(self, random: Random) -> int:
        if not self._left or self._machine.phase is Phase.OVER:
            self._replace(random)
        self._left -= 1
        self._now += random.choice((0.0, 0.0, 0.01, 0.3))
        machine, message = self._machine, message_of(random)
        sender = random.choice(tuple(machine.registry.hosts))
        incarnation = machine.registry.hosts[sender].incarnation
        reason = rejection_reason(message, sender=sender, receiver=COORDINATOR, incarnation=incarnation)
        event = Received(sender, incarnation, message, random.choice(PAYLOADS))
        effects = machine.receive(
            event if reason is None else Misbehaved(sender, incarnation, reason), self._now
        )
        is_refused = any(isinstance(effect, Refuse) for effect in effects)
        self.refused += is_refused
        self.taken += bool(effects) and not is_refused
        if random.random() < 0.05:
            machine.receive(Tick(), self._now)
        machine.validate()
        return 1

    def check(self) -> None:
        assert self.taken > 0 and self.refused > 0

    def close(self) -> None:
        pass
