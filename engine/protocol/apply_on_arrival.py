"""Policy of a parameter server: each push is applied when it arrives, exactly once; fetches are answered.

It orders pushes, and remembers for each stream (a part's pushes of one fragment) the last push that it
applied. Exactly-once is ours: a push is known by (stream, incarnation, sequence), and of a stream one is sent
at a time, so that the last one bounds what is remembered. Which units of work each range of numbers holds is
remembered, too: that outlives the run, so that the next one does the rest.

Source: DistBelief, section 4.1 (the sharded parameter server of Downpour).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self, TypeAlias

import msgspec
from typing_extensions import override

from partita.engine.protocol import messages as m
from partita.engine.protocol.checkpoint_messages import AskUnits, LostPushes, UnitsHeld, Unsent
from partita.engine.protocol.commands import POINT
from partita.engine.protocol.copy_messages import ShardCounts
from partita.engine.protocol.durability.records import Record
from partita.engine.protocol.events import HeldUnits, Persist, Received, Refuse, Send, stream_of
from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.message_base import MOST
from partita.engine.protocol.message_form import step_of
from partita.engine.protocol.names import COORDINATOR, host_and_fragment
from partita.engine.protocol.ranges import Ranges
from partita.engine.protocol.shard_effects import (
    ApplyGradient,
    Compensate,
    Policy,
    ShardEffect,
    ShardRanges,
)
from partita.engine.protocol.staleness import AS_IT_IS, Compensated, Staleness
from partita.engine.protocol.unsent_book import UnsentBook

MOST_STALE: Final = 1024
"""Staleness is counted up to here: the number of versions remembered for each range."""

MOST_CHANGES: Final = 64
"""A part that lacks more pushes gets whole tables: the pushes whose rows a shard remembers."""

Watermark: TypeAlias = tuple[int, int]
"""The last push of a stream that is applied: (incarnation, sequence)."""


@dataclass(frozen=True, slots=True)
class RestoredState:
    """The counts in the checkpoint from which a shard starts; the defaults are those of a new run.

    Args:
        version: pushes applied so far, in this run.
        updates: updates of each value so far, in earlier runs, too.
        seen: the watermarks of this run. (A part of another run counts its pushes from zero again.)
        stops: for each stream, the step below which the shard has its gradients, in this run.
        updates_of: for each range, the updates of its values, in this run; if not given, `updates`.
        units: for each range of the shard's vector, the units of work whose gradients it holds, in this run
            and those before it.
        lost: for each stream, pushes that earlier processes have found missing, and perhaps not reported.
    """

    version: int = 0
    updates: int = 0
    seen: Mapping[str, Watermark] = field(default_factory=dict)
    stops: Mapping[str, int] = field(default_factory=dict)
    updates_of: Mapping[int, int] = field(default_factory=dict)
    units: HeldUnits = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def after(cls, counts: Persist) -> Self:
        """Returns the counts that a file would have."""
        same = counts.seen, counts.stops, counts.updates_of, counts.units
        return cls(counts.version, counts.updates, *same)

    def in_another_run(self, *, version: int | None = None) -> Self:
        """Returns the counts with which a run goes on from those of an earlier one."""
        return replace(self, version=self.version if version is None else version, seen={}, stops={})

    @classmethod
    def of(cls, counts: ShardCounts) -> Self:
        """Returns the counts of another copy of the shard."""
        seen = {part: (incarnation, pushes - 1) for part, (incarnation, pushes) in counts.seen.items()}
        return cls(counts.version, 0, seen, counts.stops, counts.updates, dict(counts.units), counts.lost)


@dataclass(slots=True)
class _Stream:
    """The pushes of one part, of one fragment.

    `sequence` is the last push applied, or found lost, of its newest process; -1 before the first. Its pushes
    hold the gradients of the steps below `stop`; `earlier` records those of the process before.
    """

    incarnation: int = -1
    sequence: int = -1
    stop: int = 0
    earlier: PushRecord | None = None
    staleness: int = 0
    scale: float = 1.0  # of the last push applied
    own: list[int] = field(default_factory=list)  # versions of its pushes since the base of the last one
    number: int = 0  # of the record of the last push applied
    applied: int = 0
    lost: int = 0

    def held_before(self) -> PushRecord | None:
        """Returns the record of earlier processes.

        A checkpoint keeps their last step, but not how many pushes they were; 0 changes no count of the part.
        """
        if self.earlier is None and self.sequence < 0 < min(self.incarnation, self.stop):
            return PushRecord(self.incarnation - 1, 0, self.stop)
        return self.earlier


class ApplyOnArrival(Policy):
    """Applies pushes in the order of arrival."""

    orders = (AskUnits,)
    requests = (m.Fetch, m.Push, Unsent)  # of each stream one of each is under way
    saves_on_request = True

    def __init__(
        self,
        own: ShardRanges,
        *,
        restored: RestoredState | None = None,
        acknowledged: Mapping[str, Sequence[PushRecord]] | None = None,
        staleness: Staleness = AS_IT_IS,
        keeps_unsent: bool = False,
    ) -> None:
        """Creates the policy of a shard that starts, or starts again.

        Args:
            own: the shard's name, incarnation and ranges.
            restored: the counts in its checkpoint.
            acknowledged: for each stream, the pushes of each process of its part that this shard has
                acknowledged, the oldest first: those that the checkpoint lacks are lost.
            staleness: what is done about stale gradients.
            keeps_unsent: files have what compressed pushes lacked, see `UnsentBook`.
        """
        self._unsent: Final = UnsentBook(own) if keeps_unsent else None
        self._staleness: Final = staleness
        restored = restored or RestoredState()
        self.version = restored.version
        self._own: Final = own
        self._restored: Final = restored
        self._updates: Final = {n: restored.updates_of.get(n, restored.updates) for n in own.ranges}
        self._updates_at_start: Final = sum(self._updates.values())
        self._units: Final = {
            number: Ranges(restored.units.get(span, ())) for number, span in own.ranges.items()
        }
        self._units_at_start: Final = {number: Ranges(units) for number, units in self._units.items()}
        self._streams = {
            name: _Stream(*watermark, restored.stops.get(name, 0), lost=restored.lost.get(name, 0))
            for name, watermark in restored.seen.items()
        }
        self._applied_at: Final[dict[int, list[int]]] = {number: [] for number in own.ranges}
        self._parted_at = restored.version
        self._unreported: list[str] = []
        self.learn(acknowledged or {})

    def learn(self, acknowledged: Mapping[str, Sequence[PushRecord]]) -> None:
        """Counts pushes that earlier processes have acknowledged as lost, where they are not here.

        Args:
            acknowledged: as `__init__` takes it.
        """
        for name, records in acknowledged.items():
            for record in records if self._own.number_of(name) >= 0 else ():
                self._account(self._streams.setdefault(name, _Stream()), record)
        self._unreported = [name for name, one in self._streams.items() if one.lost]

    @property
    def seen(self) -> dict[str, Watermark]:
        """The last push applied of each stream."""
        return {name: (one.incarnation, one.sequence) for name, one in self._streams.items()}

    @property
    @override
    def lost(self) -> int:
        return sum(one.lost for one in self._streams.values())

    @override
    def receive(self, event: Received) -> list[ShardEffect]:
        match event.message:
            case m.Push() as push:
                return self._push(event, push)
            case m.Fetch() as fetch:
                return self._fetch(event, fetch)
            case Unsent() as answer if self._unsent is not None:
                reason = self._own.rejection_reason(event)
                effects = (
                    self._unsent.take(event, answer) if reason is None else [Refuse(event.sender, reason)]
                )
                return [*map(self._at_present, effects)]
            case Unsent():
                return [Refuse(event.sender, "what it has kept was not asked for")]
            case AskUnits():
                return [Send(event.sender, self._units_held())]
        raise AssertionError(event)

    @override
    def counts(self) -> ShardCounts:
        streams = {name: one for name, one in self._streams.items() if one.incarnation >= 0}
        seen = {name: (one.incarnation, one.sequence + 1) for name, one in streams.items()}
        stops = {name: one.stop for name, one in streams.items()}
        units = tuple((span, tuple(self._units[number])) for number, span in self._own.ranges.items())
        lost = {name: one.lost for name, one in streams.items() if one.lost}
        return ShardCounts(self.version, dict(self._updates), seen, stops, units, lost)

    @override
    def replay(self, record: Record) -> list[ShardEffect]:
        name, push = stream_of(record.request), record.request.message
        assert isinstance(push, m.Push) and record.number == self.version + 1, (record, self.version)
        stream = self._streams.setdefault(name, _Stream())
        self._account(stream, PushRecord(push.incarnation, 0))  # the fetch of a new process is no record
        effects = self._apply(name, push, record.request.payload, again=True)
        self._parted_at = self.version
        for units in push.units:
            self._units_at_start[self._own.number_of(name)].cover(*units)
        return [effect for effect in effects if isinstance(effect, ApplyGradient)]

    @override
    def recorded(self, request: Received) -> Received:
        """A record has the scale with which a push was applied: another process would count its staleness
        anew.
        """
        push = request.message
        if not isinstance(push, m.Push) or push.scale == (scale := self._streams[stream_of(request)].scale):
            return request
        return msgspec.structs.replace(request, message=msgspec.structs.replace(push, scale=scale))

    @override
    def promised_by(self, event: Received) -> int:
        """An answer to a part's new process promises the pushes of the one before it."""
        one = self._streams.get(stream_of(event))
        is_new = one is not None and event.incarnation > one.incarnation
        return one.number if one is not None and is_new and isinstance(event.message, m.Fetch) else 0

    @override
    def tick(self, *, leased: bool) -> list[ShardEffect]:
        unreported, self._unreported = self._unreported, []
        asks = self._unsent.tick(self.now) if leased and self._unsent is not None else []
        return [*map(self._report_lost, unreported), *map(self._at_present, asks)]

    @override
    def persist(self, checkpoint: int) -> Persist:
        updates = max(self._updates.values(), default=self._restored.updates)
        stops = {name: one.stop for name, one in self._streams.items()}
        units = {span: tuple(self._units[number]) for number, span in self._own.ranges.items()}
        return Persist(
            checkpoint,
            self._own.incarnation,
            self.version,
            updates,
            self.seen,
            stops,
            units,
            finite=True,
            updates_of=dict(self._updates),
            collects=self._unsent is not None,
        )

    @override
    def persisting(self, order: Persist) -> list[ShardEffect]:
        return [] if self._unsent is None else self._unsent.begin(order, self.seen, self.now)

    def _units_held(self) -> UnitsHeld:
        held, some = Ranges([(0, MOST)]), Ranges()
        for units in self._units.values():
            held = Ranges(held.common(units))
            for one in units:
                some.cover(*one)
        return UnitsHeld(tuple(held), tuple(some))

    def _push(self, event: Received, push: m.Push) -> list[ShardEffect]:
        sender = event.sender
        reason = self._own.rejection_reason(event, "a push")
        if reason is None and (push.incarnation != event.incarnation or push.sequence < 0):
            reason = (
                f"the push has incarnation {push.incarnation}, sequence {push.sequence}; "
                f"its sender is incarnation {event.incarnation}, and sequences count from 0"
            )
        if reason is None and any(start >= stop for start, stop in push.units):
            reason = f"the push has the units {push.units}, of which each range has a unit"
        if reason is not None:
            return [Refuse(sender, reason)]
        name = stream_of(event)
        stream = self._streams.get(name)
        if stream is None and push.incarnation == 0:
            stream = self._streams[name] = _Stream(0)
        if stream is None or push.incarnation != stream.incarnation:
            # From a replaced process, which needs no answer; or from a new one whose fetch comes first,
            # because that reports which pushes of the earlier ones were acknowledged.
            return []
        if push.sequence <= stream.sequence:
            is_last = push.sequence == stream.sequence
            return self._acknowledge(name, push, stream.staleness if is_last else 0)
        return self._take(event, push)

    def _take(self, event: Received, push: m.Push) -> list[ShardEffect]:
        """Handles a push that is new; another policy may let it wait."""
        return self._apply(stream_of(event), push, event.payload)

    def _apply(self, name: str, push: m.Push, payload: object, *, again: bool = False) -> list[ShardEffect]:
        """Applies a new push: the only place where the version moves. `again`: as its record says."""
        stream, number = self._streams[name], self._own.number_of(name)
        lost = self._account(stream, PushRecord(push.incarnation, push.sequence))
        # A gradient of an older incarnation's parameters was computed from values that may be lost: staleness
        # is counted from where its history and this one part.
        own = push.shard_incarnation == self._own.incarnation
        base = push.version if own else min(push.version, self._parted_at)
        applied = self._applied_at[number]
        stream.staleness = len(applied) - bisect_right(applied, base)
        overtaken = self._overtaken(stream, base)  # also forgets: a backup, which only replays, must not grow
        stream.scale = push.scale if again else push.scale * self._staleness.scale(overtaken)
        stream.sequence, stream.stop = push.sequence, max(stream.stop, push.stop)
        stream.applied += 1
        self.version += 1
        stream.number = self.version
        stream.own.append(self.version)
        applied.append(self.version)
        del applied[:-MOST_STALE]
        for units in push.units:
            self._units[number].cover(*units)
        span, updates = self._own.span(POINT, number), self._updates[number]
        known = name, push.incarnation, push.sequence
        apply = ApplyGradient(span, payload, updates, *known, stream.scale, step_of(push.stop))
        corrects = own and not again and isinstance(self._staleness, Compensated)
        first = [Compensate(span, payload, name, base)] if corrects else []
        self._updates[number] += 1
        ack = self._acknowledge(name, push, stream.staleness)
        return [*first, apply, *ack, *([self._report_lost(name)] if lost else [])]

    def _overtaken(self, stream: _Stream, base: int) -> int:
        """Returns how many pushes of others a part's gradient lacks."""
        del stream.own[: bisect_right(stream.own, base)], stream.own[:-MOST_STALE]
        return max(0, stream.staleness - len(stream.own))

    def _account(self, stream: _Stream, record: PushRecord) -> bool:
        """Counts acknowledged pushes that were not applied here as lost. Returns whether there are any.

        An earlier incarnation of the shard acknowledged them, after the checkpoint that this one started
        from. Records of processes before the part's newest one hold nothing new.
        """
        if record.incarnation < stream.incarnation:
            return False
        if record.incarnation > stream.incarnation:
            if stream.incarnation >= 0 and (stream.sequence >= 0 or stream.earlier is None):
                # One that has pushed nothing may not have learnt of the pushes before it.
                stream.earlier = PushRecord(stream.incarnation, stream.sequence + 1, stream.stop)
            stream.incarnation, stream.sequence, stream.staleness = record.incarnation, -1, 0
        stream.stop = max(stream.stop, record.stop)
        missed = record.pushes - stream.sequence - 1
        if missed <= 0:
            return False
        stream.sequence += missed
        stream.lost += missed
        return True

    def _report_lost(self, name: str) -> Send:
        """Reports all pushes of a stream's part that were found missing."""
        part = host_and_fragment(name)[0]
        of_part = (one.lost for other, one in self._streams.items() if host_and_fragment(other)[0] == part)
        return Send(COORDINATOR, LostPushes(part, sum(of_part)))

    def _acknowledge(self, name: str, push: m.Push, staleness: int) -> list[ShardEffect]:
        known = self._own.incarnation, push.incarnation, push.sequence
        ack = m.PushAck(*known, self.version, staleness, push.fragment)
        answer = Send(host_and_fragment(name)[0], ack)
        return [answer] if self._unsent is None else self._unsent.hold(name, answer)

    def _at_present(self, answer: ShardEffect) -> ShardEffect:
        """Returns an acknowledgement with the version that the shard has now."""
        if isinstance(answer, Send) and isinstance(answer.message, m.PushAck):
            return Send(answer.to, msgspec.structs.replace(answer.message, version=self.version))
        return answer

    def _fetch(self, event: Received, fetch: m.Fetch) -> list[ShardEffect]:
        sender = event.sender
        reason = self._own.rejection_reason(event)
        if any(not 0 <= one.incarnation < event.incarnation or one.pushes < 0 for one in fetch.earlier):
            reason = f"incarnation {event.incarnation} reports {fetch.earlier} of earlier ones"
        if reason is not None:
            return [Refuse(sender, reason)]
        name = stream_of(event)
        stream, number = self._streams.setdefault(name, _Stream()), self._own.number_of(name)
        if event.incarnation < stream.incarnation:
            return []  # a replaced process needs no answer
        own = PushRecord(event.incarnation, fetch.acknowledged)
        lost = [self._account(stream, one) for one in (*fetch.earlier, own)]
        answer = m.Parameters(
            fetch.request,
            self._own.incarnation,
            self.version,
            self._updates[number],
            event.incarnation,
            stream.held_before(),
            stream.sequence + 1,
            tuple(self._units_at_start[number]) if stream.sequence < 0 else (),
            self._pushes_since(number, fetch.since),
            fetch.fragment,
        )
        span = self._own.span(POINT, number)
        return [Send(sender, answer, span), *([self._report_lost(name)] if any(lost) else [])]

    def _pushes_since(self, number: int, since: tuple[int, int] | None) -> int | None:
        """Returns how many pushes to a range followed a version; None where all rows are sent."""
        if since is None or number not in self._own.rows_bytes:
            return None
        incarnation, version = since
        if incarnation != self._own.incarnation or version < self._parted_at:
            return None
        applied = self._applied_at[number]
        n = len(applied) - bisect_right(applied, version)
        return n if n <= MOST_CHANGES else None

    @override
    def validate(self) -> None:
        applied = sum(one.applied for one in self._streams.values())
        assert self.version == self._restored.version + applied, (self.version, applied)
        updates = sum(self._updates.values()) - self._updates_at_start
        assert updates == applied, (self._updates, applied)
        if self._unsent is not None:
            self._unsent.validate()
        for name, one in self._streams.items():
            assert self._own.number_of(name) >= 0, name
            assert min(one.sequence + 1, one.incarnation, one.stop, one.lost) >= 0, (name, one)
            assert one.earlier is None or one.earlier.incarnation < one.incarnation, (name, one)
