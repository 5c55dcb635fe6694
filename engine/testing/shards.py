"""The simulated body of a shard: named vectors of a few numbers, and files on the simulated disk.

It stands for `runtime.shard`: one after the other, gradients are applied or added up, operations are
executed, and files are written. A driver's checks see each of these, and what the shard sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from partita.engine.protocol.commands import POINT, Operation
from partita.engine.protocol.durability import BeginSegment, Keep, Record, RemoveRecords
from partita.engine.protocol.durability.backup import ApplyWithin, Backup, PolicyOf
from partita.engine.protocol.durability.fill import ALL_VECTORS, Fill, WriteChunk
from partita.engine.protocol.durability.replicated import ReplicatedShard
from partita.engine.protocol.durability.snapshots import SnapshotBackup, SnapshotShard
from partita.engine.protocol.events import HeldUnits, Persist, Received, Send
from partita.engine.protocol.membership import HeartbeatPolicy
from partita.engine.protocol.names import backup_index, other_copy
from partita.engine.protocol.shard import Shard
from partita.engine.protocol.shard_effects import (
    AddGradient,
    ApplyGradient,
    Compensate,
    CopyTaken,
    DropGradients,
    Fenced,
    KeepUnsent,
    LoadCheckpoint,
    LongEffect,
    MoveGradient,
    OperationsDone,
    Policy,
    ReceiveAgain,
    ReleaseCopy,
    RunOperations,
    ShardRanges,
    StoreGradient,
    SumsTaken,
    TakeCopy,
    TakeSums,
    WriteFile,
    WriteVector,
)
from partita.engine.protocol.sum_then_continue import SumThenContinue, without_replies
from partita.engine.testing.faults import freeze
from partita.engine.testing.host import Numbers, SimulatedBody, SimulatedHost
from partita.engine.testing.invariants import require
from partita.engine.testing.log import LogWriter
from partita.engine.testing.schedule import HEARTBEAT_S, Schedule
from partita.engine.testing.vectors import Vector, Vectors, added, operate


@dataclass(frozen=True, slots=True)
class ShardState:
    """The contents of a shard's file; `reference` is what its checks keep about it."""

    vectors: Vectors
    seen: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    stops: Mapping[str, int] = field(default_factory=dict)
    units: HeldUnits = field(default_factory=dict)
    reference: Any = None


class ShardChecks:
    """The checks of one process of a shard. A subclass overrides what concerns its driver."""

    def begins(self, number: int) -> None:
        """Looks at the number of pushes or commands, before an effect or a message."""

    def receives(self, event: Received) -> None:
        """Looks at a message that was handled."""

    def sends(self, send: Send, payload: Callable[[], Numbers]) -> None:
        """Looks at a message that leaves."""

    def applies(self, effect: ApplyGradient, x: Vector) -> None:
        """Looks at a gradient that was applied, and at the values after it."""

    def keeps(self, evaluation: int, unit: int, machine: int, payload: Vector) -> None:
        """Looks at a gradient that is kept for a sum."""

    def does(self, operations: Sequence[Operation]) -> None:
        """Looks at operations that come next."""

    def done(self, scalars: Sequence[float]) -> None:
        """Looks at their scalars."""

    def persists(self, order: Persist) -> object:
        """Looks at a file that is written, and returns the reference of its contents."""

    def collects(self, order: Persist, stream: str, unsent: tuple[float, ...]) -> None:
        """Looks at what the pushes of a stream have lacked, which is written, too."""

    def copied(self, numbers: Numbers) -> Numbers:
        """Looks at numbers that are sent to another copy of the shard."""
        return numbers

    def filled(self, numbers: Numbers) -> None:
        """Looks at numbers that another copy has sent, which are all of the shard's now."""

    def reverts(self, checkpoint: int | None) -> None:
        """Looks at vectors that were replaced by those of a checkpoint."""


def shard_of(name: str) -> str:
    """Returns the shard that a host is, or that it is the backup of."""
    return name if backup_index(name) is None else other_copy(name)


Begin: TypeAlias = Callable[[int | None], ShardState]
"""Returns the state of a shard in a committed checkpoint; None: that in which the run began."""


class ShardBody(SimulatedBody):
    """A shard's vectors of `size` numbers each; an update by a gradient is its sum.

    Attributes:
        checks: look at everything that it does.
        apply_s: the longest update; now and then the process is stopped in it, and replaced.
        operation_s: the longest time of operations in a row, during which messages come; 0: none come.
        log: its records are written to; None: nobody keeps them.
    """

    checks: ShardChecks
    copied_vectors: Vectors | None = None  # that another copy is filled from
    log: LogWriter | None = None
    machine: Shard | Backup
    apply_s = 0.0
    operation_s = 0.0

    def __init__(self, schedule: Schedule, host: SimulatedHost, begin: Begin) -> None:
        super().__init__(host)
        self.schedule = schedule
        self.vectors: Vectors = dict(begin(host.checkpoint).vectors)
        self.size = schedule.layout.sizes[shard_of(host.name)]
        self._begin = begin
        self._kept: dict[tuple[int, int], Vector] = {}

    _collecting: tuple[Persist, ShardState]  # a file that may not be written yet

    def build(self, policy: Policy) -> Shard:
        """Builds the machine of this shard."""
        heartbeats = HeartbeatPolicy(heartbeat_s=HEARTBEAT_S)
        own = self.ranges(self.schedule, self.host)
        keeps = self.log is not None
        self.machine = self.schedule.kind(Shard)(own, policy, heartbeats=heartbeats, keeps=keeps)
        return self.machine

    def build_replicated(self, policy: Policy, policy_of: PolicyOf) -> ReplicatedShard:
        """Builds the machine of a shard that has a backup, and may begin from there."""
        host, heartbeats = self.host, HeartbeatPolicy(heartbeat_s=HEARTBEAT_S)
        own, backup = self.ranges(self.schedule, host), other_copy(host.name)
        fill = Fill(backup, self.size, number_bytes=4) if host.from_backup else None
        kind = self.schedule.kind(SnapshotShard if policy.makes_records else ReplicatedShard)
        machine = kind(
            own, policy, backup, size=self.size, fill=fill, policy_of=policy_of, heartbeats=heartbeats
        )
        self.machine = machine
        self._cut_copies()
        return machine

    def _cut_copies(self) -> None:
        """Lets copies that are of one moment have several chunks."""
        if isinstance(self.machine, SnapshotShard | SnapshotBackup):
            self.machine.snapshot.chunk = self.host.world.beside.choice((1, 4, 100))

    def build_backup(self, policy_of: PolicyOf, real: type[Backup] = Backup) -> Backup:
        """Builds the machine of a backup."""
        own, heartbeats = self.ranges(self.schedule, self.host), HeartbeatPolicy(heartbeat_s=HEARTBEAT_S)
        shard = other_copy(self.host.name)
        machine = self.schedule.kind(real)(
            own, shard, self.size, policy_of, number_bytes=4, heartbeats=heartbeats
        )
        self.machine = machine
        self._cut_copies()
        return machine

    @staticmethod
    def ranges(schedule: Schedule, host: SimulatedHost) -> ShardRanges:
        """Returns the ranges of a shard, for its machine and its policy."""
        shard = shard_of(host.name)
        machines = schedule.environment.topology.machines
        ranges = schedule.layout.of_shard[shard]
        return ShardRanges(host.name, host.incarnation, ranges, machines=machines)

    @property
    def begun(self) -> int:
        """The number of pushes, or of the last command."""
        policy = self.machine.policy
        return policy.number if isinstance(policy, SumThenContinue) else self.machine.version

    def carry_out(self, effect: Any, event: Any) -> Any:
        """Carries out an effect of the shard's machine."""
        self.checks.begins(self.begun)
        return self._perform(effect)

    def replay(self, policy: Policy, records: Iterable[Record]) -> None:
        """Carries out the records of earlier processes again. Nobody looks."""
        self.checks = ShardChecks()
        for record in records:
            effects = deque(policy.replay(record))
            while effects:
                effect = effects.popleft()
                if isinstance(effect, RunOperations | LoadCheckpoint):
                    scalars = self._worked(effect).scalars
                    effects += without_replies(policy.operations_done(scalars, leased=True))
                else:
                    self._perform(effect)

    def _perform(self, effect: Any) -> Any:
        match effect:
            case WriteChunk(vectors=names) if names:
                self._fill(effect)
            case TakeSums(vectors=names):
                return SumsTaken(tuple(Numbers(self.vectors[name]) for name in names))
            case WriteVector(vector=name, payload=Numbers() as numbers):
                self.vectors[name] = tuple(numbers)
            case TakeCopy():
                self.copied_vectors = dict(self.vectors)
                return CopyTaken(tuple(self.vectors))
            case ReleaseCopy():
                self.copied_vectors = None
            case WriteChunk(start=start, stop=stop, payload=Numbers() as numbers):
                require((start, stop) == (0, self.size), "D3", "a chunk of a shard is", (start, stop))
                self.vectors[POINT] = tuple(numbers)
                self.checks.filled(numbers)
            case ApplyWithin(apply=apply, ranges=ranges):
                if ranges:
                    self.apply(apply)
                    self.checks.applies(apply, self.vectors[POINT])
            case ApplyGradient():
                self.apply(effect)
                self.checks.applies(effect, self.vectors[POINT])
                if not effect.more:  # a merge is one update
                    self._take_time()
            case Compensate():
                pass  # an update is the sum of what was pushed: not its size, but what it has is checked
            case Keep() | BeginSegment() | RemoveRecords():
                if self.log is not None:
                    self.log.carry_out(effect)
            case StoreGradient():
                self._store(effect)
            case AddGradient(machine=machine, into=into, of=of):
                whole = added(self._kept[machine, into], self._kept.pop((machine, of)))
                self._kept[machine, into] = whole
            case MoveGradient(machine=machine, unit=unit, span=span):
                vector = list(self.vectors.get(span.vector, (0.0,) * self.size))
                vector[span.start : span.stop] = self._kept.pop((machine, unit))
                self.vectors[span.vector] = tuple(vector)
            case DropGradients():
                self._kept.clear()
            case Persist():
                kept = self.checks.persists(effect)
                state = ShardState(
                    dict(self.vectors), dict(effect.seen), dict(effect.stops), dict(effect.units), kept
                )
                self._collecting = effect, state
                if not effect.collects:
                    self.write(self.schedule, effect, state)
            case KeepUnsent(payload=Numbers() as numbers):
                self.checks.collects(self._collecting[0], effect.stream, tuple(numbers))
            case WriteFile(checkpoint=checkpoint):
                order, state = self._collecting
                require(order.checkpoint == checkpoint, "C2", effect, "and what is collected is for", order)
                self.write(self.schedule, order, state)
            case ReceiveAgain(event=again):
                return again
            case Fenced():
                self.host.exit()
            case _:
                return self._work(effect)
        return None

    def apply(self, effect: ApplyGradient) -> None:
        """Adds a gradient, times the factor of the learning rate, to the values."""
        assert isinstance(effect.payload, Numbers)
        x = list(self.vectors[POINT])
        for i, number in enumerate(effect.payload, effect.span.start):
            x[i] += effect.factor * number
        self.vectors[POINT] = tuple(x)

    def _take_time(self) -> None:
        if not self.apply_s:
            return
        world, host = self.host.world, self.host
        host.pause(self.apply_s * world.random.random())
        if world.now < self.schedule.environment.chaos_s and world.random.random() < 0.02:
            freeze(host, world.random.uniform(3.0, 8.0))

    def _fill(self, effect: WriteChunk) -> None:
        """Writes a chunk of vectors that are named, the first of which replaces all others."""
        if not effect.start:
            self.vectors.clear()
            self.vectors.update(dict.fromkeys(effect.vectors, (0.0,) * self.size))
        numbers = tuple(effect.payload) if isinstance(effect.payload, Numbers) else ()
        for n, name in enumerate(effect.vectors):
            vector, size = list(self.vectors[name]), effect.stop - effect.start
            vector[effect.start : effect.stop] = numbers[n * size : (n + 1) * size]
            self.vectors[name] = tuple(vector)

    def _store(self, effect: StoreGradient) -> None:
        """Keeps a gradient for a sum."""
        assert isinstance(effect.payload, Numbers)
        machine, unit, numbers = effect.machine, effect.unit, tuple(effect.payload)
        self.checks.keeps(effect.evaluation, unit, machine, numbers)
        if effect.beside is not None:
            numbers = added(self._kept.pop((machine, effect.beside)), numbers)
            unit = min(unit, effect.beside)
        self._kept[machine, unit] = numbers

    def _work(self, effect: LongEffect) -> OperationsDone | None:
        """Executes operations at once, or in the background while messages arrive; some take long."""
        if not self.operation_s:
            return self._worked(effect)
        self.host.later(self.operation_s * self.host.world.random.random() ** 12, self.on_worked, effect)
        return None

    def on_worked(self, effect: LongEffect) -> None:
        """Ends operations in the background."""
        self.host.on_event(self._worked(effect))

    def _worked(self, effect: LongEffect) -> OperationsDone:
        if isinstance(effect, LoadCheckpoint):
            self.vectors.clear()
            self.vectors.update(self._begin(effect.checkpoint).vectors)
            self.checks.reverts(effect.checkpoint)
            return OperationsDone()
        self.checks.does(effect.operations)
        scalars = [one for asked in effect.operations for one in operate(self.vectors, asked, self.size)]
        self.checks.done(scalars)
        return OperationsDone(scalars)

    def payload(self, send: Send) -> Numbers:
        """Returns the numbers of a span."""
        assert send.payload is not None
        if send.payload.vector == ALL_VECTORS:
            if self.copied_vectors is not None:
                start, stop = send.payload.start, send.payload.stop
                return Numbers(x for vector in self.copied_vectors.values() for x in vector[start:stop])
            return self.checks.copied(Numbers(self.vectors[POINT][send.payload.start : send.payload.stop]))
        return Numbers(self.vectors[send.payload.vector][send.payload.start : send.payload.stop])

    def sends(self, send: Send) -> None:
        """Shows the checks what leaves."""
        self.checks.begins(self.begun)
        self.checks.sends(send, lambda: self.payload(send))

    def handled(self, event: Any) -> None:
        """Shows the checks what has come."""
        if isinstance(event, Received):
            self.checks.receives(event)
