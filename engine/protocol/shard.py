"""One shard of a run's vectors: its lease, its fence, its files; a policy says what happens to the numbers.

A shard works only under a lease: the coordinator has returned, for this incarnation, a clock reading of this
shard (in a heartbeat of its host) that is younger than `lease_s`. The coordinator declares a silent shard
dead only later than `lease_s` after its last message. So two processes are never the same shard at the same
time, however late a message or a stopped process comes back. Messages that arrive without a lease wait for
it: a start (or a pause of the coordinator) would take a second or more longer if they had to be repeated.

This module must not know what a push or a command is.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec
from typing_extensions import override

from partita.engine.protocol import batch_messages as bm
from partita.engine.protocol import messages as m
from partita.engine.protocol.checkpoint_messages import (
    CheckpointCommitted,
    LogReport,
    Save,
    Saved,
    SaveFailed,
)
from partita.engine.protocol.durability import (
    BeginSegment,
    HeldReplies,
    Keep,
    Kept,
    LogNote,
    Record,
    RemoveRecords,
)
from partita.engine.protocol.events import (
    Delivered,
    NotPersisted,
    Persist,
    Persisted,
    Received,
    Refuse,
    Send,
    Tick,
    stream_of,
)
from partita.engine.protocol.host import PeersChanged, RoleMachine
from partita.engine.protocol.membership import DEFAULT_HEARTBEATS, HeartbeatPolicy
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.shard_effects import (
    Compensate,
    CopyTaken,
    Fenced,
    OperationsDone,
    Policy,
    ReceiveAgain,
    ShardEffect,
    ShardEvent,
    ShardRanges,
    SumsTaken,
)

_NEEDS_LEASE: Final = (
    bm.CommandResult,
    bm.ContributionAck,
    bm.MissingUnits,
    bm.CommandsMissing,
    m.Parameters,
    bm.Point,
    m.PushAck,
    Saved,
)


class Shard(RoleMachine):
    """A shard that works under its lease, stops when it is replaced, and reports its files.

    Attributes:
        policy: what it does with the numbers.
        fenced: whether it was replaced.
    """

    def __init__(
        self,
        own: ShardRanges,
        policy: Policy,
        *,
        heartbeats: HeartbeatPolicy = DEFAULT_HEARTBEATS,
        keeps: bool = False,
    ) -> None:
        """Creates a shard without a lease.

        Args:
            own: its name, incarnation and ranges.
            policy: with the counts of the checkpoint that it starts from.
            heartbeats: how often it asks for a lease, and how long one lasts.
            keeps: whether somebody keeps its records; then a reply that promises one waits until it is kept.
        """
        self.policy = policy
        self.name: Final = own.name
        self.incarnation: Final = own.incarnation
        self.fenced = False
        self.heartbeat_s = heartbeats.heartbeat_s
        self._lease_s: Final = heartbeats.lease_s
        self._leased_until = float("-inf")
        self._early: Final[dict[tuple[str, type], Received]] = {}  # the last of each stream and kind
        self._writing: Final[deque[Saved]] = deque()  # reports of files under way, without names and hashes
        self._wanted: int | None = None  # the newest checkpoint asked for while a file is written
        self._saved: Saved | None = None
        self._save_failed: SaveFailed | None = None
        self._held: Final = HeldReplies(policy.version) if keeps else None

    @property
    def version(self) -> int:  # type: ignore[override]
        """The number of pushes or commands that its vectors hold."""
        return self.policy.version

    def holds_lease(self, now: float) -> bool:
        """Returns whether it may apply and acknowledge at `now` (seconds, its own monotonic clock)."""
        return not self.fenced and now < self._leased_until

    @override
    def may_send(self, message: m.Message, now: float) -> bool:
        """Returns whether a message may leave at `now` (seconds, its own monotonic clock).

        The interpreter asks before each `Send`: an earlier effect takes a while, and the process may be
        stopped in it. A message that was not sent is repeated on request.
        """
        return not isinstance(message, _NEEDS_LEASE) or self.holds_lease(now)

    @override
    def receive(self, event: ShardEvent, now: float) -> list[ShardEffect]:
        """Returns the effects of an event at `now` (seconds, the host's monotonic clock), in order."""
        self.policy.now = now
        match event:
            case Received():
                effects = self._received(event, now)
            case OperationsDone(scalars=scalars):
                effects = self._hold(self.policy.operations_done(scalars, leased=self.holds_lease(now)))
            case SumsTaken(payloads=payloads):
                effects = self._hold(self.policy.sums_taken(payloads))
            case Kept(number=number):
                return self._release(number)
            case LogNote(text=text, wants_checkpoint=wants):
                return [Send(COORDINATOR, LogReport(self.incarnation, text, wants))]
            case Tick():
                return [*self.policy.tick(leased=self.holds_lease(now))]
            case Persisted() | NotPersisted():
                effects = self._persisted(event, now)
            case PeersChanged() | Delivered() | CopyTaken():
                return []
        for effect in effects:
            if isinstance(effect, Persist):
                self._writing.append(
                    Saved(effect.checkpoint, self.incarnation, effect.version, "", "", self.policy.lost)
                )
                if self._held is not None:
                    return [BeginSegment(effect.version + 1), *effects]
        return effects

    def _received(self, event: Received, now: float) -> list[ShardEffect]:
        policy, message = self.policy, event.message
        if isinstance(message, policy.orders if event.sender == COORDINATOR else policy.requests):
            if self.holds_lease(now):
                return policy.receive(event) if self._held is None else self._handle(event, self._held)
            if not self.fenced:
                self._early[stream_of(event), type(message)] = event
            return []
        if event.sender == COORDINATOR and isinstance(message, m.Heartbeat):
            return self._heartbeat(message, now)
        if event.sender == COORDINATOR and isinstance(message, Save):
            return self._save(message.checkpoint, now)
        if event.sender == COORDINATOR and isinstance(message, CheckpointCommitted):
            return self._committed(message.checkpoint)
        return [Refuse(event.sender, f"{self.name} does not take a {type(message).__name__} from it")]

    # Records.

    def _handle(self, event: Received, held: HeldReplies) -> list[ShardEffect]:
        """Handles a request of which a record may have to be kept."""
        before, promised = self.policy.version, self.policy.promised_by(event)
        if promised > held.kept:
            held.delay(ReceiveAgain(event), (stream_of(event), type(event.message)), promised)
            return []
        effects = self._hold(self.policy.receive(event))
        if self.policy.makes_records or self.policy.version == before:
            return effects
        record = Record(self.policy.version, self.policy.recorded(event))
        before_it = [one for one in effects if isinstance(one, Compensate)]
        return [*before_it, Keep(record), *(one for one in effects if not isinstance(one, Compensate))]

    def _hold(self, effects: list[ShardEffect]) -> list[ShardEffect]:
        return effects if self._held is None else self._held.hold(effects, self.policy.version)

    def _committed(self, checkpoint: int) -> list[ShardEffect]:
        """Uses a checkpoint as a keeper of the records in it."""
        if self._held is None or self._saved is None or self._saved.checkpoint != checkpoint:
            return []
        version = self._saved.version
        return [RemoveRecords(version), *self._release(version)]

    def _release(self, kept: int) -> list[ShardEffect]:
        """Returns the replies that waited for the records up to a number."""
        released = [] if self._held is None else self._held.release(kept)
        return [one for one in released if self.policy.is_current(one)]

    # The lease.

    def _heartbeat(self, message: m.Heartbeat, now: float) -> list[ShardEffect]:
        if self.fenced or message.incarnation < self.incarnation:
            return []
        if message.incarnation > self.incarnation:
            self.fenced = True
            self._early.clear()
            if self._held is not None:
                self._held.clear()
            return [Fenced(message.incarnation)]
        if message.clock is not None and message.clock <= now:
            self._leased_until = max(self._leased_until, message.clock + self._lease_s)
        return self.receive_early(now)

    def receive_early(self, now: float) -> list[ShardEffect]:
        """Handles the messages that waited for the lease, if it holds now."""
        if not self._early or not self.holds_lease(now):
            return []
        early = list(self._early.values())
        self._early.clear()
        return [*map(ReceiveAgain, early)]

    # Files.

    def _save(self, checkpoint: int, now: float) -> list[ShardEffect]:
        """Reports a file of this checkpoint again, or begins it.

        Files on request are written one at a time; of those asked for meanwhile only the newest matters.
        """
        if not self.holds_lease(now):
            return []
        saved, failed = self._saved, self._save_failed
        if saved is not None and saved.checkpoint == checkpoint:
            return [Send(COORDINATOR, saved)]
        if not self.policy.saves_on_request:
            return [Send(COORDINATOR, failed)] if failed and failed.checkpoint == checkpoint else []
        if saved is not None and checkpoint < saved.checkpoint:
            return []
        if self._writing:
            if checkpoint > self._writing[0].checkpoint:
                self._wanted = max(checkpoint, self._wanted or 0)
            return []
        order = self.policy.persist(checkpoint)
        return [order, *self.policy.persisting(order)]

    def _persisted(self, event: Persisted | NotPersisted, now: float) -> list[ShardEffect]:
        """Reports the oldest file under way, unless the shard was replaced, and begins the next one."""
        writing = self._writing.popleft() if self._writing else None
        expected = None if writing is None else (writing.checkpoint, writing.version)
        assert (event.checkpoint, event.version) == expected, f"{event} while writing {writing}"
        wanted, self._wanted = self._wanted, None
        if self.fenced or writing is None:
            return []
        report: Saved | SaveFailed
        if isinstance(event, NotPersisted):
            report = self._save_failed = SaveFailed(event.checkpoint, self.incarnation, event.reason)
        else:
            report = self._saved = msgspec.structs.replace(writing, file=event.file, sha256=event.sha256)
        return [Send(COORDINATOR, report), *(self._save(wanted, now) if wanted is not None else ())]

    @override
    def validate(self) -> None:
        """Checks invariants I1 to I7 as far as one shard can see them. Raises AssertionError."""
        assert not (self.fenced and (self._early or self.holds_lease(float("-inf"))))
        versions = [saved.version for saved in (self._saved, *self._writing) if saved is not None]
        assert versions == sorted(versions) and all(v <= self.version for v in versions), versions
        if self.policy.saves_on_request:
            assert len(self._writing) <= 1, self._writing
        if self._wanted is not None:
            assert self._wanted > self._writing[0].checkpoint, (self._wanted, self._writing)
        if self._held is not None:
            self._held.validate()
            assert self._held.kept <= self.version, (self._held.kept, self.version)
        self.policy.validate()
