"""A shard of Downpour's parameter server: each push is applied exactly once, and only under the lease.

It answers fetches, orders pushes, and remembers for each part the last push that it applied. It must not know
the optimizer, the numbers, the disk or the network: it asks for all of them by effects, to be carried out in
order, each finished before the next one starts (`Persist` when its copy is taken).

Source: DistBelief, section 4.1 (the sharded parameter server). Exactly-once and leases are ours: a push is
known by (part, incarnation, sequence), and a part sends one at a time, so that the last one bounds what is
remembered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from partita.engine.protocol import messages as m
from partita.engine.protocol.events import (
    NotPersisted,
    Persist,
    Persisted,
    Received,
    Refuse,
    Send,
    Span,
    Tick,
)
from partita.engine.protocol.lease import Fenced, LeasedShard
from partita.engine.protocol.membership import DEFAULT_HEARTBEATS, HeartbeatPolicy
from partita.engine.protocol.names import COORDINATOR, machine_of

MOST_STALE: Final = 1024
"""Staleness is counted up to here: the number of versions remembered for each machine's range."""

Watermark: TypeAlias = tuple[int, int]
"""The last push of a part that is applied: (incarnation, sequence)."""


@dataclass(frozen=True, slots=True)
class ApplyGradient:
    """Effect: update these values with the gradient in the payload, by the shard's optimizer.

    `updates` counts the earlier updates of the values.
    """

    span: Span
    payload: object
    updates: int


@dataclass(frozen=True, slots=True)
class RestoredState:
    """The counts in the checkpoint from which a shard starts; the defaults are those of a new run.

    Args:
        version: pushes applied so far, in this run.
        updates: updates of each value so far, in earlier runs, too.
        seen: the watermarks of this run. (A part of another run counts its pushes from zero again.)
        stops: for each part, the step below which the shard has its gradients, in this run.
    """

    version: int = 0
    updates: int = 0
    seen: Mapping[str, Watermark] = field(default_factory=dict)
    stops: Mapping[str, int] = field(default_factory=dict)


ShardEvent: TypeAlias = Received | Tick | Persisted | NotPersisted
ShardEffect: TypeAlias = ApplyGradient | Send | Persist | Fenced | Refuse


@dataclass(slots=True)
class _Part:
    """The pushes of one part.

    `sequence` is the last push applied, or found lost, of its newest process; -1 before the first. Its pushes
    hold the gradients of the steps below `stop`; `earlier` records those of the process before.
    """

    incarnation: int = -1
    sequence: int = -1
    stop: int = 0
    earlier: m.PushRecord | None = None
    staleness: int = 0
    applied: int = 0
    lost: int = 0


class ParameterShard(LeasedShard):
    """One shard of the parameter server. It applies and answers only under its lease."""

    def __init__(
        self,
        name: str,
        *,
        incarnation: int,
        ranges: Mapping[int, tuple[int, int]],
        restored: RestoredState | None = None,
        acknowledged: Mapping[str, Sequence[m.PushRecord]] | None = None,
        item_bytes: int = 4,
        heartbeats: HeartbeatPolicy = DEFAULT_HEARTBEATS,
    ) -> None:
        """Creates a shard that starts, or starts again.

        Args:
            name: "shard K".
            incarnation: of this process.
            ranges: for each machine, its `(start, stop)` in the shard's own flat vector.
            restored: the counts in its checkpoint.
            acknowledged: for each part, the pushes of each of its processes that this shard has acknowledged,
                the oldest first: those that the checkpoint lacks are lost.
            item_bytes: bytes of one number of a payload.
            heartbeats: how often it asks for a lease, and how long one lasts.
        """
        super().__init__(
            name, incarnation=incarnation, ranges=ranges, item_bytes=item_bytes, heartbeats=heartbeats
        )
        restored = restored or RestoredState()
        self.version = restored.version
        self._restored: Final = restored
        self._updates: Final = dict.fromkeys(ranges, restored.updates)
        self._parts = {
            part: _Part(*watermark, restored.stops.get(part, 0)) for part, watermark in restored.seen.items()
        }
        self._applied_at: Final[dict[int, list[int]]] = {machine: [] for machine in ranges}
        self._wanted: int | None = None  # the newest checkpoint asked for while a file is written
        for part, records in (acknowledged or {}).items():
            for record in records if machine_of(part) in self._ranges else ():
                self._account(self._parts.setdefault(part, _Part()), record)
        self._unreported = list(self.lost)  # parts whose lost pushes were not reported

    @property
    def seen(self) -> dict[str, Watermark]:
        """The last push applied of each part."""
        return {name: (part.incarnation, part.sequence) for name, part in self._parts.items()}

    @property
    def stops(self) -> dict[str, int]:
        """For each part, the step below which its gradients are here, or found lost."""
        return {name: part.stop for name, part in self._parts.items()}

    @property
    def updates(self) -> int:
        """The largest number of updates of any value, in every run so far."""
        return max(self._updates.values(), default=self._restored.updates)

    @property
    def lost(self) -> dict[str, int]:
        """Acknowledged pushes of each part that the checkpoint this shard started from did not hold."""
        return {name: part.lost for name, part in self._parts.items() if part.lost}

    def receive(self, event: ShardEvent, now: float) -> list[ShardEffect]:
        """Returns the effects of an event at `now` (seconds, the host's monotonic clock), in order."""
        match event:
            case Received(message=m.Push() as push):
                return self._push(event, push, now)
            case Received(message=m.Fetch() as fetch):
                return self._fetch(event, fetch, now)
            case Received(sender=sender, message=m.Save() as save) if sender == COORDINATOR:
                return self._save(save.checkpoint, now)
            case Persisted() | NotPersisted():
                return self._persisted(event, now)
            case Received():
                return [*self._other(event, now)]
            case Tick():
                unreported, self._unreported = self._unreported, []
                return [*self._other(event, now), *map(self._report_lost, unreported)]

    def _push(self, event: Received, push: m.Push, now: float) -> list[ShardEffect]:
        if not self.holds_lease(now):
            return []
        sender = event.sender
        reason = self._rejection_reason(event, "a push")
        if reason is None and (push.incarnation != event.incarnation or push.sequence < 0):
            reason = (
                f"the push has incarnation {push.incarnation}, sequence {push.sequence}; "
                f"its sender is incarnation {event.incarnation}, and sequences count from 0"
            )
        if reason is not None:
            return [Refuse(sender, reason)]
        part = self._parts.get(sender)
        if part is None and push.incarnation == 0:
            part = self._parts[sender] = _Part(0)
        if part is None or push.incarnation != part.incarnation:
            # From a replaced process, which needs no answer; or from a new one whose fetch comes first,
            # because that reports which pushes of the earlier ones were acknowledged.
            return []
        if push.sequence <= part.sequence:
            return [self._acknowledge(sender, push, part.staleness if push.sequence == part.sequence else 0)]
        return self._apply(sender, push, part, event.payload)

    def _apply(self, sender: str, push: m.Push, part: _Part, payload: object) -> list[ShardEffect]:
        """Applies a new push: the only place where the version moves."""
        lost = self._account(part, m.PushRecord(push.incarnation, push.sequence))
        # A gradient of an older incarnation's parameters was computed from values that may be lost: staleness
        # is counted from where its history and this one part.
        own = push.shard_incarnation == self.incarnation
        base = push.version if own else min(push.version, self._restored.version)
        machine = machine_of(sender)
        applied = self._applied_at[machine]
        part.staleness = len(applied) - bisect_right(applied, base)
        part.sequence, part.stop = push.sequence, max(part.stop, push.stop)
        part.applied += 1
        self.version += 1
        applied.append(self.version)
        del applied[:-MOST_STALE]
        apply = ApplyGradient(Span("values", *self._ranges[machine]), payload, self._updates[machine])
        self._updates[machine] += 1
        ack = self._acknowledge(sender, push, part.staleness)
        return [apply, ack, *([self._report_lost(sender)] if lost else [])]

    def _account(self, part: _Part, record: m.PushRecord) -> bool:
        """Counts acknowledged pushes that were not applied here as lost. Returns whether there are any.

        An earlier incarnation of the shard acknowledged them, after the checkpoint that this one started
        from. Records of processes before the part's newest one hold nothing new.
        """
        if record.incarnation < part.incarnation:
            return False
        if record.incarnation > part.incarnation:
            if part.incarnation >= 0 and (part.sequence >= 0 or part.earlier is None):
                # One that has pushed nothing may not have learnt of the pushes before it.
                part.earlier = m.PushRecord(part.incarnation, part.sequence + 1, part.stop)
            part.incarnation, part.sequence, part.staleness = record.incarnation, -1, 0
        part.stop = max(part.stop, record.stop)
        missed = record.pushes - part.sequence - 1
        if missed <= 0:
            return False
        part.sequence += missed
        part.lost += missed
        return True

    def _report_lost(self, name: str) -> Send:
        return Send(COORDINATOR, m.LostPushes(name, self._parts[name].lost))

    def _acknowledge(self, sender: str, push: m.Push, staleness: int) -> Send:
        ack = m.PushAck(self.incarnation, push.incarnation, push.sequence, self.version, staleness)
        return Send(sender, ack)

    def _fetch(self, event: Received, fetch: m.Fetch, now: float) -> list[ShardEffect]:
        if not self.holds_lease(now):
            return []
        sender = event.sender
        reason = self._rejection_reason(event)
        if any(not 0 <= one.incarnation < event.incarnation or one.pushes < 0 for one in fetch.earlier):
            reason = f"incarnation {event.incarnation} reports {fetch.earlier} of earlier ones"
        if reason is not None:
            return [Refuse(sender, reason)]
        part = self._parts.setdefault(sender, _Part())
        if event.incarnation < part.incarnation:
            return []  # a replaced process needs no answer
        own = m.PushRecord(event.incarnation, fetch.acknowledged)
        lost = [self._account(part, one) for one in (*fetch.earlier, own)]
        machine = machine_of(sender)
        answer = m.Parameters(
            fetch.request,
            self.incarnation,
            self.version,
            self._updates[machine],
            event.incarnation,
            part.earlier,
            part.sequence + 1,
        )
        span = Span("values", *self._ranges[machine])
        return [Send(sender, answer, span), *([self._report_lost(sender)] if any(lost) else [])]

    def _save(self, checkpoint: int, now: float) -> list[ShardEffect]:
        """Writes one file at a time; of those asked for meanwhile only the newest matters."""
        if not self.holds_lease(now):
            return []
        if self._saved is not None and checkpoint <= self._saved.checkpoint:
            return [Send(COORDINATOR, self._saved)] if checkpoint == self._saved.checkpoint else []
        if self._writing:
            if checkpoint > self._writing[0].checkpoint:
                self._wanted = max(checkpoint, self._wanted or 0)
            return []
        lost = sum(part.lost for part in self._parts.values())
        self._writing.append(m.Saved(checkpoint, self.incarnation, self.version, "", "", lost))
        return [Persist(checkpoint, self.incarnation, self.version, self.updates, self.seen, self.stops)]

    def _persisted(self, event: Persisted | NotPersisted, now: float) -> list[ShardEffect]:
        wanted, self._wanted = self._wanted, None
        reported = self._report_file(event)
        return [*reported, *(self._save(wanted, now) if reported and wanted is not None else ())]

    def validate(self) -> None:
        """Checks invariants I1, I3 and I4 as far as one shard can see them. Raises AssertionError."""
        super().validate()
        applied = sum(part.applied for part in self._parts.values())
        assert self.version == self._restored.version + applied, (self.version, applied)
        updates = sum(updates - self._restored.updates for updates in self._updates.values())
        assert updates == applied, (self._updates, applied)
        for name, part in self._parts.items():
            assert machine_of(name) in self._ranges, name
            assert min(part.sequence + 1, part.incarnation, part.stop, part.lost) >= 0, (name, part)
            assert part.earlier is None or part.earlier.incarnation < part.incarnation, (name, part)
        assert len(self._writing) <= 1, self._writing
        if self._wanted is not None:
            assert self._wanted > self._writing[0].checkpoint, (self._wanted, self._writing)
        assert self._saved is None or self._saved.version <= self.version
