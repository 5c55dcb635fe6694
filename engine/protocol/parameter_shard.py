"""The protocol of a shard: each push is applied exactly once, and only while nobody else may be the shard.

It answers fetches, orders pushes, and remembers for each part the last push that it applied. It must not know
the update rule, the numbers, the disk or the network: it asks for all of them by effects, which are carried
out in the order given, each finished before the next one starts (`Persist` when its copy is taken).

Source: DistBelief, section 4.1 (the sharded parameter server). Exactly-once and leases are ours: a push is
known by (part, incarnation, sequence), and a part sends one at a time, so that the last one bounds what is
remembered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from partita.engine.protocol.events import (
    NotPersisted,
    Persist,
    Persisted,
    Received,
    Refuse,
    Send,
    Span,
    Tick,
    payload_bytes,
)
from partita.engine.protocol.lease import Fenced, LeasedShard
from partita.engine.protocol.membership import DEFAULT_HEARTBEATS
from partita.engine.protocol.messages import (
    Fetch,
    Heartbeat,
    LostPushes,
    Parameters,
    Push,
    PushAck,
    PushRecord,
    Save,
    Saved,
    SaveFailed,
)
from partita.engine.protocol.names import COORDINATOR, machine_of

MOST_STALE: Final = 1024
"""Staleness is counted up to here: so many versions are remembered for each machine's range."""

Watermark: TypeAlias = tuple[int, int]
"""The last push of a part that is applied: (incarnation, sequence)."""


@dataclass(frozen=True, slots=True)
class ApplyGradient:
    """Effect: update these values with the gradient in the payload, by the shard's rule.

    `updates` is how many the values have had before.
    """

    span: Span
    payload: object
    updates: int


ShardEvent: TypeAlias = Received | Tick | Persisted | NotPersisted
ShardEffect: TypeAlias = ApplyGradient | Send | Persist | Fenced | Refuse


@dataclass(slots=True)
class _Part:
    """What is remembered of one part.

    `sequence` is the last push applied, or found lost, of its newest process; -1 before the first. Its pushes
    hold the gradients of the steps below `stop`; those of `earlier`, of the processes before.
    """

    incarnation: int = -1
    sequence: int = -1
    stop: int = 0
    earlier: PushRecord | None = None
    staleness: int = 0
    applied: int = 0
    lost: int = 0


class ParameterShard(LeasedShard):
    """One shard of the parameter server. It applies and answers only under its lease."""

    def __init__(
        self,
        name: str,
        *,
        epoch: int,
        ranges: Mapping[int, tuple[int, int]],
        version: int = 0,
        updates: int = 0,
        seen: Mapping[str, Watermark] | None = None,
        stops: Mapping[str, int] | None = None,
        acknowledged: Mapping[str, Sequence[PushRecord]] | None = None,
        item_bytes: int = 4,
        lease_s: float = DEFAULT_HEARTBEATS.lease_s,
        heartbeat_s: float = DEFAULT_HEARTBEATS.heartbeat_s,
    ) -> None:
        """A shard that starts, or starts again.

        Args:
            name: "shard K".
            epoch: the incarnation of this process.
            ranges: for each machine, its `(start, stop)` in the shard's own flat vector.
            version: pushes applied so far, as the checkpoint it starts from says.
            updates: how many each value has had, as the checkpoint says: also one of another run.
            seen: the watermarks of that checkpoint, of the same run. (Parts of another run count their pushes
                from zero again: a run that resumes from a checkpoint of another one starts with none.)
            stops: for each part, the step below which that checkpoint holds its gradients; of the same run.
            acknowledged: for each part, the pushes that this shard has acknowledged to each of its processes,
                the oldest first: those that the checkpoint lacks are lost.
            item_bytes: bytes of one number of a payload.
            lease_s: how long an echoed clock reading lets it work: less than what the coordinator takes for
                death, see `Pace`.
            heartbeat_s: how often it asks for the next one.
        """
        super().__init__(name, epoch=epoch, lease_s=lease_s, heartbeat_s=heartbeat_s)
        self.version = version
        self._ranges: Final = dict(ranges)
        self._restored_version: Final = version
        self._restored_updates: Final = updates
        self._updates: Final = dict.fromkeys(ranges, updates)
        self._parts = {
            part: _Part(*watermark, (stops or {}).get(part, 0)) for part, watermark in (seen or {}).items()
        }
        self._applied_at: Final[dict[int, list[int]]] = {machine: [] for machine in ranges}
        self._item_bytes: Final = item_bytes
        self._writing: Saved | None = None  # said of the file under way, but for its name and hash
        self._wanted: int | None = None
        self._saved: Saved | None = None
        for name, processes in (acknowledged or {}).items():
            for settled in processes if machine_of(name) in self._ranges else ():
                self._account(self._parts.setdefault(name, _Part()), settled)
        self._unsaid = list(self.lost)  # parts whose losses nobody has been told

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
        """The most that any value has had: pushes to the range of one machine, in every run so far."""
        return max(self._updates.values(), default=self._restored_updates)

    @property
    def lost(self) -> dict[str, int]:
        """Acknowledged pushes of each part that the checkpoint this shard started from did not hold."""
        return {name: part.lost for name, part in self._parts.items() if part.lost}

    def receive(self, event: ShardEvent, now: float) -> list[ShardEffect]:
        """What follows from an event at `now` (seconds, the host's monotonic clock), to be done in order."""
        match event:
            case Received(message=Push() as push):
                return self._push(event, push, now)
            case Received(message=Fetch() as fetch):
                return self._fetch(event, fetch, now)
            case Received(sender=sender, message=Heartbeat() as heartbeat):
                return [*self._heartbeat(heartbeat, now)] if sender == COORDINATOR else []
            case Received(sender=sender, message=Save() as save) if sender == COORDINATOR:
                return self._save(save.checkpoint, now)
            case Received(sender=sender, message=message):
                return [Refuse(sender, f"{self.name} does not take a {type(message).__name__} from it")]
            case Persisted() | NotPersisted():
                return self._persisted(event, now)
            case Tick():
                unsaid, self._unsaid = self._unsaid, []
                return [*self._tick(now), *(self._say_lost(name) for name in unsaid)]

    def _push(self, event: Received, push: Push, now: float) -> list[ShardEffect]:
        if not self.holds_lease(now):
            return []
        sender = event.sender
        reason = self._why_not(event, push)
        if reason is not None:
            return [Refuse(sender, reason)]
        part = self._parts.get(sender)
        if part is None and push.incarnation == 0:
            part = self._parts[sender] = _Part(0)
        if part is None or push.incarnation != part.incarnation:
            # Of an old process, to which nobody listens any more; or of a new one whose fetch comes first,
            # because that says what the old ones were acknowledged.
            return []
        if push.sequence <= part.sequence:
            return [self._acknowledge(sender, push, part.staleness if push.sequence == part.sequence else 0)]
        return self._apply(sender, push, part, event.payload)

    def _apply(self, sender: str, push: Push, part: _Part, payload: object) -> list[ShardEffect]:
        """A push that is new: the only place where the version moves."""
        lost = self._account(part, PushRecord(push.incarnation, push.sequence))
        # A gradient of an older epoch was computed from numbers that may be lost: what has been applied to
        # this history since is counted from where the two part.
        base = push.version if push.epoch == self.epoch else min(push.version, self._restored_version)
        machine = machine_of(sender)
        applied = self._applied_at[machine]
        part.staleness = len(applied) - bisect_right(applied, base)
        part.sequence, part.stop = push.sequence, max(part.stop, push.stop)
        part.applied += 1
        self.version += 1
        applied.append(self.version)
        del applied[:-MOST_STALE]
        start, stop = self._ranges[machine]
        apply = ApplyGradient(Span("values", start, stop), payload, self._updates[machine])
        self._updates[machine] += 1
        said = self._acknowledge(sender, push, part.staleness)
        return [apply, said, *([self._say_lost(sender)] if lost else [])]

    def _account(self, part: _Part, settled: PushRecord) -> bool:
        """These pushes were acknowledged; those not applied here are lost. Returns whether there are any.

        They were acknowledged by an epoch before this one, after the checkpoint that this one started from.
        Of a process of the part before its newest one all is known already.
        """
        if settled.incarnation < part.incarnation:
            return False
        if settled.incarnation > part.incarnation:
            if part.incarnation >= 0:
                part.earlier = PushRecord(part.incarnation, part.sequence + 1, part.stop)
            part.incarnation, part.sequence, part.staleness = settled.incarnation, -1, 0
        part.stop = max(part.stop, settled.stop)
        missed = settled.pushes - part.sequence - 1
        if missed <= 0:
            return False
        part.sequence += missed
        part.lost += missed
        return True

    def _say_lost(self, name: str) -> Send:
        return Send(COORDINATOR, LostPushes(name, self._parts[name].lost))

    def _acknowledge(self, sender: str, push: Push, staleness: int) -> Send:
        return Send(sender, PushAck(self.epoch, push.incarnation, push.sequence, self.version, staleness))

    def _why_not(self, event: Received, push: Push) -> str | None:
        """Why this push cannot be meant, checked before anything changes; None when it is well formed."""
        machine = machine_of(event.sender)
        if machine not in self._ranges:
            return f"{self.name} holds no parameters of {event.sender!r}"
        if push.incarnation != event.incarnation or push.sequence < 0:
            return (
                f"the push says incarnation {push.incarnation}, sequence {push.sequence}; "
                f"its sender is incarnation {event.incarnation}, and sequences count from 0"
            )
        start, stop = self._ranges[machine]
        expected, found = (stop - start) * self._item_bytes, payload_bytes(event.payload)
        if found != expected:
            return f"a push of {event.sender!r} to {self.name} has {expected} bytes, not {found}"
        return None

    def _fetch(self, event: Received, fetch: Fetch, now: float) -> list[ShardEffect]:
        if not self.holds_lease(now):
            return []
        sender = event.sender
        machine = machine_of(sender)
        if machine not in self._ranges:
            return [Refuse(sender, f"{self.name} holds no parameters of {sender!r}")]
        if any(not 0 <= one.incarnation < event.incarnation or one.pushes < 0 for one in fetch.earlier):
            return [Refuse(sender, f"incarnation {event.incarnation} says {fetch.earlier} of earlier ones")]
        part = self._parts.setdefault(sender, _Part())
        if event.incarnation < part.incarnation:
            return []  # nobody waits for the answer
        own = PushRecord(event.incarnation, fetch.settled)
        lost = [self._account(part, one) for one in (*fetch.earlier, own)]
        span = Span("values", *self._ranges[machine])
        said = Parameters(
            fetch.request,
            self.epoch,
            self.version,
            self._updates[machine],
            event.incarnation,
            part.earlier,
        )
        return [Send(sender, said, span), *([self._say_lost(sender)] if any(lost) else [])]

    def _save(self, checkpoint: int, now: float) -> list[ShardEffect]:
        """One file is written at a time; of those asked for meanwhile only the newest matters."""
        if not self.holds_lease(now):
            return []
        if self._saved is not None and checkpoint <= self._saved.checkpoint:
            return [Send(COORDINATOR, self._saved)] if checkpoint == self._saved.checkpoint else []
        if self._writing is not None:
            if checkpoint > self._writing.checkpoint:
                self._wanted = max(checkpoint, self._wanted or 0)
            return []
        lost = sum(part.lost for part in self._parts.values())
        self._writing = Saved(checkpoint, self.epoch, self.version, "", "", lost)
        return [Persist(checkpoint, self.epoch, self.version, self.updates, self.seen, self.stops)]

    def _persisted(self, event: Persisted | NotPersisted, now: float) -> list[ShardEffect]:
        writing, self._writing = self._writing, None
        wanted, self._wanted = self._wanted, None
        expected = None if writing is None else (writing.checkpoint, writing.version)
        assert (event.checkpoint, event.version) == expected, f"{event} while writing {writing}"
        if self.fenced or writing is None:
            return []
        if isinstance(event, NotPersisted):  # asked again, it writes again
            effects: list[ShardEffect] = [
                Send(COORDINATOR, SaveFailed(event.checkpoint, self.epoch, event.reason))
            ]
        else:
            self._saved = msgspec.structs.replace(writing, file=event.file, sha256=event.sha256)
            effects = [Send(COORDINATOR, self._saved)]
        return effects if wanted is None else effects + self._save(wanted, now)

    def validate(self) -> None:
        """The invariants I1, I3 and I4 as far as one shard can see them. Raises AssertionError."""
        super().validate()
        applied = sum(part.applied for part in self._parts.values())
        assert self.version == self._restored_version + applied, (self.version, applied)
        updates = sum(updates - self._restored_updates for updates in self._updates.values())
        assert updates == applied, (self._updates, applied)
        for name, part in self._parts.items():
            assert machine_of(name) in self._ranges, name
            assert min(part.sequence + 1, part.incarnation, part.stop, part.lost) >= 0, (name, part)
            assert part.earlier is None or part.earlier.incarnation < part.incarnation, (name, part)
        if self._wanted is not None:
            assert self._writing is not None, self._wanted
            assert self._wanted > self._writing.checkpoint, (self._wanted, self._writing)
        assert self._saved is None or self._saved.version <= self.version
