"""A shard, its backup and parts, over a network that loses, repeats and reorders, and their coordination."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from partita.engine.protocol import ApplyOnArrival, ShardRanges
from partita.engine.protocol import copy_messages as cm
from partita.engine.protocol import messages as m
from partita.engine.protocol.apply_on_arrival import RestoredState
from partita.engine.protocol.durability.backup import ApplyWithin, Backup, PolicyOf
from partita.engine.protocol.durability.fill import Fill, WriteChunk
from partita.engine.protocol.durability.replicated import ReplicatedShard
from partita.engine.protocol.events import Delivered, Received, Send, Tick
from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.shard_effects import ApplyGradient, ReceiveAgain

SIZE = 5
RANGES = {0: (0, 2), 1: (2, SIZE)}
PARTS = ("part 0.0", "part 1.0", "part 0.1")
SHARD, BACKUP = "shard 0", "backup 0"
MODULUS = (1 << 61) - 1
NUMBER_BYTES = 4

Push = tuple[str, int]
"""A push: its part and sequence."""


class Numbers:
    """A payload: numbers, of four bytes each."""

    def __init__(self, values: list[int]) -> None:
        self.values, self.n_bytes = values, NUMBER_BYTES * len(values)


@dataclass
class Process:
    """A shard or a backup with its numbers; an update depends on all before it."""

    name: str
    incarnation: int
    machine: Any
    values: list[int] = field(default_factory=lambda: [1] * SIZE)
    applied: list[Push] = field(default_factory=list)

    def apply(self, effect: ApplyGradient, ranges: tuple[tuple[int, int], ...]) -> None:
        assert isinstance(effect.payload, Numbers)
        for start, stop in ranges:
            for at in range(max(start, effect.span.start), min(stop, effect.span.stop)):
                gradient = effect.payload.values[at - effect.span.start]
                self.values[at] = (self.values[at] * 31 + gradient) % MODULUS


@dataclass
class Part:
    name: str
    sequence: int = 0
    is_acknowledged: bool = True
    acknowledged: int = 0


class World:
    """One shard and its backup. `deliver`, `lose` and `repeat` act on any message under way.

    With `links`, what the shard sends its backup lies in memory that both share, in order.
    """

    def __init__(self, *, links: bool = False) -> None:
        self.now = 0.0
        self.links = links
        self.linked: deque[Received] = deque()
        self.network: list[tuple[str, int, str, int, Any, Any]] = []
        self.parts = {name: Part(name) for name in PARTS}
        self.begun_anew = -1  # times after the first
        self.is_whole: set[str] = {SHARD}  # as the coordinator knows
        self.incarnations = {SHARD: -1, BACKUP: -1}
        self.processes: dict[str, Process] = {}
        self.start_shard()
        self.start_backup()

    # What the coordinator does.

    def start_shard(self, *, from_backup: bool = False) -> None:
        incarnation = self.incarnations[SHARD] = self.incarnations[SHARD] + 1
        own = ShardRanges(SHARD, incarnation, RANGES)
        known = {part.name: (PushRecord(0, part.acknowledged),) for part in self.parts.values()}
        fill = Fill(BACKUP, SIZE, number_bytes=NUMBER_BYTES) if from_backup else None
        make = self._policy_of(own, known if from_backup else {})
        policy = make(cm.ShardCounts())
        machine = ReplicatedShard(own, policy, BACKUP, size=SIZE, fill=fill, policy_of=make)
        self.processes[SHARD] = Process(SHARD, incarnation, machine)
        if not from_backup:
            self.begun_anew += 1
            for part in self.parts.values():  # the run begins anew: what was acknowledged is lost
                part.sequence, part.is_acknowledged, part.acknowledged = 0, True, 0
        self.lease()
        self.publish()

    def start_backup(self) -> None:
        incarnation = self.incarnations[BACKUP] = self.incarnations[BACKUP] + 1
        own = ShardRanges(BACKUP, incarnation, RANGES)
        machine = Backup(own, SHARD, SIZE, self._policy_of(own, {}), number_bytes=NUMBER_BYTES)
        self.processes[BACKUP] = Process(BACKUP, incarnation, machine)
        self.is_whole.discard(BACKUP)
        self.publish()

    @staticmethod
    def _policy_of(own: ShardRanges, known: Mapping[str, Sequence[PushRecord]]) -> PolicyOf:
        def policy(counts: cm.ShardCounts) -> ApplyOnArrival:
            made = ApplyOnArrival(own, restored=RestoredState.of(counts))
            made.learn(known)
            return made

        return policy

    def publish(self) -> None:
        self.read_link(len(self.linked))
        present = {name: process.incarnation for name, process in self.processes.items()}
        for name, process in list(self.processes.items()):
            self.feed(process, PeersChanged(1, {n: i for n, i in present.items() if n != name}))

    def lease(self) -> None:
        process = self.processes.get(SHARD)
        if process is not None:
            self.feed(process, Received(COORDINATOR, 0, m.Heartbeat(process.incarnation, self.now)))

    def kill(self, name: str) -> None:
        """Ends a process, and does what the coordinator does then."""
        whole = frozenset(self.is_whole)
        del self.processes[name]
        if name == BACKUP:
            self.linked.clear()
        self.publish()
        if name == BACKUP:
            self.start_backup()
            if SHARD in whole:
                return
            del self.processes[SHARD]
            self.linked.clear()
        elif BACKUP in whole:
            self.is_whole = {BACKUP}
            self.start_shard(from_backup=True)
            self.ask_again()
            return
        self.is_whole = {SHARD}
        self.network = [one for one in self.network if one[2] not in PARTS and one[0] not in PARTS]
        self.start_shard()
        self.start_backup()

    @property
    def both_whole(self) -> bool:
        return self.is_whole == {SHARD, BACKUP}

    # Parts.

    def push(self, name: str) -> None:
        """Makes a part's next push, if the one before is acknowledged; else sends that again."""
        part = self.parts[name]
        if part.is_acknowledged:
            part.is_acknowledged = False
            part.sequence += 1
        self._transmit(part)

    def _transmit(self, part: Part) -> None:
        start, stop = RANGES[int(part.name[-1])]
        push = m.Push(0, part.sequence - 1, 0, 0, part.sequence)
        payload = Numbers([hash((part.sequence, at)) % 1000 + int(part.name[5]) for at in range(start, stop)])
        self.network.append((part.name, 0, SHARD, self.incarnations[SHARD], push, payload))

    def ask_again(self) -> None:
        for part in self.parts.values():
            if not part.is_acknowledged:
                self._transmit(part)

    # The network.

    def deliver(self, n: int) -> None:
        if not self.network:
            return
        sender, incarnation, to, its, message, payload = self.network.pop(n % len(self.network))
        event = Received(sender, incarnation, message, payload)
        if to in self.parts:
            part = self.parts[to]
            if isinstance(message, m.PushAck) and message.sequence == part.sequence - 1:
                part.is_acknowledged, part.acknowledged = True, part.sequence
        elif to == COORDINATOR:
            process = self.processes.get(sender)
            is_late = isinstance(message, m.WaitReport)
            if process is not None and process.incarnation == incarnation and not is_late:
                assert isinstance(message, cm.CopyComplete), message
                if message.incarnation == self.incarnations[SHARD]:
                    self.is_whole = {SHARD, BACKUP}
        elif (process := self.processes.get(to)) is not None and process.incarnation == its:
            self.feed(process, event)  # perhaps of a process that has died meanwhile

    def read_link(self, most: int) -> None:
        """Gives the backup so many of the messages in shared memory."""
        for _ in range(most):
            if self.linked and BACKUP in self.processes:
                self.feed(self.processes[BACKUP], self.linked.popleft())

    def lose(self, n: int) -> None:
        if self.network:
            self.network.pop(n % len(self.network))

    def repeat(self, n: int) -> None:
        if self.network:
            self.network.append(self.network[n % len(self.network)])

    def tick(self, seconds: float = 0.3) -> None:
        self.now += seconds
        self.lease()
        for process in list(self.processes.values()):
            self.feed(process, Tick())

    def feed(self, process: Process, event: Any) -> None:
        if self.processes.get(process.name) is not process:
            return
        effects = process.machine.receive(event, self.now)
        process.machine.validate()
        delivered = []
        for effect in effects:
            match effect:
                case Send(message=message):
                    if process.machine.may_send(message, self.now) and self._send(process, effect):
                        delivered.append(Delivered(effect.to, message))
                case ApplyGradient():
                    process.apply(effect, ((0, SIZE),))
                    process.applied.append((effect.stream, effect.sequence))
                case ApplyWithin(apply=apply, ranges=ranges):
                    process.apply(apply, ranges)
                    process.applied.append((apply.stream, apply.sequence))
                case WriteChunk(start=start, stop=stop, payload=Numbers() as numbers):
                    process.values[start:stop] = numbers.values
                case ReceiveAgain(event=again):
                    self.feed(process, again)
                case _:
                    raise AssertionError(effect)
        for one in delivered:
            self.feed(process, one)

    def _send(self, process: Process, send: Send) -> bool:
        to, message, span, payload = send.to, send.message, send.payload, send.forwarded
        if span is not None:
            payload = Numbers(process.values[span.start : span.stop])
        if self.links and (process.name, to) == (SHARD, BACKUP):
            if to in self.processes:
                self.linked.append(Received(process.name, process.incarnation, message, payload))
            return to in self.processes and send.reports
        self.network.append(
            (process.name, process.incarnation, to, self.incarnations.get(to, 0), message, payload)
        )
        return False

    # What must hold.

    def settle(self) -> None:
        """Delivers everything in order until both copies are whole and every push is acknowledged."""
        for _ in range(60):
            for _ in range(len(self.network)):
                self.deliver(0)
            self.read_link(len(self.linked))
            self.tick()
            done = all(part.is_acknowledged for part in self.parts.values())
            if done and self.both_whole and not self.network:
                return
            self.ask_again()
        raise AssertionError(f"not settled: {self.is_whole}, {self.network}, {self.parts}")

    def check(self) -> None:
        """Checks that every push was applied once and in order, and that the copies are the same."""
        shard, backup = self.processes[SHARD], self.processes[BACKUP]
        counts, others = shard.machine.policy.counts(), backup.machine.policy.counts()
        assert (counts.version, counts.updates) == (others.version, others.updates)
        assert counts.version == sum(part.sequence for part in self.parts.values())
        for part in self.parts.values():
            pushes = counts.seen.get(part.name, (0, 0))[1]
            assert pushes == part.sequence == part.acknowledged, part
            assert others.seen.get(part.name, (0, 0))[1] == pushes, part
        assert shard.values == backup.values
