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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from partita.engine.protocol.events import (
    Persist,
    Persisted,
    Received,
    Refuse,
    Send,
    Span,
    Tick,
    payload_bytes,
)
from partita.engine.protocol.lease import Fenced, Leased
from partita.engine.protocol.messages import Fetch, Heartbeat, Lost, Parameters, Push, Pushed, Save, Saved
from partita.engine.protocol.names import COORDINATOR, machine_of

MOST_STALE: Final = 1024
"""Staleness is counted up to here: so many versions are remembered for each machine's range."""

Watermark: TypeAlias = tuple[int, int]
"""The last push of a part that is applied: (incarnation, sequence)."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Effect: update these values with the gradient in the payload, by the shard's rule.

    `updates` is how many the values have had before.
    """

    span: Span
    payload: object
    updates: int


ShardEvent: TypeAlias = Received | Tick | Persisted
ShardEffect: TypeAlias = Apply | Send | Persist | Fenced | Refuse


@dataclass(slots=True)
class _Part:
    """What is remembered of one part. `sequence` is the last one applied, -1 before the first."""

    incarnation: int
    sequence: int
    staleness: int = 0
    applied: int = 0
    lost: int = 0


class ShardMachine(Leased):
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
        item_bytes: int = 4,
        lease_s: float = 3.0,
        heartbeat_s: float = 0.5,
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
            item_bytes: bytes of one number of a payload.
            lease_s: how long an echoed clock reading lets it work.
            heartbeat_s: how often it asks for the next one.
        """
        super().__init__(name, epoch=epoch, lease_s=lease_s, heartbeat_s=heartbeat_s)
        self.version = version
        self._ranges: Final = dict(ranges)
        self._restored_version: Final = version
        self._restored_updates: Final = updates
        self._updates: Final = dict.fromkeys(ranges, updates)
        self._parts = {part: _Part(*watermark) for part, watermark in (seen or {}).items()}
        self._applied_at: Final[dict[int, list[int]]] = {machine: [] for machine in ranges}
        self._item_bytes: Final = item_bytes
        self._writing: Saved | None = None  # said of the file under way, but for its name and hash
        self._wanted: int | None = None
        self._saved: Saved | None = None

    @property
    def seen(self) -> dict[str, Watermark]:
        """The last push applied of each part."""
        return {name: (part.incarnation, part.sequence) for name, part in self._parts.items()}

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
            case Persisted():
                return self._persisted(event, now)
            case Tick():
                return [*self._tick(now)]

    def _push(self, event: Received, push: Push, now: float) -> list[ShardEffect]:
        if not self.holds_lease(now):
            return []
        sender = event.sender
        reason = self._why_not(event, push)
        if reason is not None:
            return [Refuse(sender, reason)]
        part = self._part(sender, push.incarnation)
        if part is None:
            return []
        if push.sequence <= part.sequence:
            return [self._acknowledge(sender, push, part.staleness if push.sequence == part.sequence else 0)]
        return self._apply(sender, push, part, event.payload)

    def _part(self, sender: str, incarnation: int) -> _Part | None:
        """What is remembered of the part; None when a newer process of it has been heard of.

        A part's next process counts from zero; what was applied and lost before stays counted.
        """
        part = self._parts.get(sender) or _Part(incarnation, -1)
        if incarnation < part.incarnation:
            return None  # nobody waits for the answer
        if incarnation > part.incarnation:
            part = _Part(incarnation, -1, applied=part.applied, lost=part.lost)
        self._parts[sender] = part
        return part

    def _apply(self, sender: str, push: Push, part: _Part, payload: object) -> list[ShardEffect]:
        """A push that is new: the only place where the version moves."""
        lost = self._miss(sender, part, push.sequence)
        # A gradient of an older epoch was computed from numbers that may be lost: what has been applied to
        # this history since is counted from where the two part.
        base = push.version if push.epoch == self.epoch else min(push.version, self._restored_version)
        machine = machine_of(sender)
        applied = self._applied_at[machine]
        part.staleness = len(applied) - bisect_right(applied, base)
        part.sequence = push.sequence
        part.applied += 1
        self.version += 1
        applied.append(self.version)
        del applied[:-MOST_STALE]
        start, stop = self._ranges[machine]
        apply = Apply(Span("values", start, stop), payload, self._updates[machine])
        self._updates[machine] += 1
        return [apply, self._acknowledge(sender, push, part.staleness), *lost]

    def _miss(self, sender: str, part: _Part, sequence: int) -> list[ShardEffect]:
        """Notes that every push of the part below this one was acknowledged; those not applied here are lost.

        They were acknowledged by an epoch before this one, after the checkpoint that this one started from.
        """
        missed = sequence - part.sequence - 1
        if missed <= 0:
            return []
        part.sequence = sequence - 1
        part.lost += missed
        return [Send(COORDINATOR, Lost(sender, part.lost))]

    def _acknowledge(self, sender: str, push: Push, staleness: int) -> Send:
        return Send(sender, Pushed(self.epoch, push.incarnation, push.sequence, self.version, staleness))

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
        part = self._part(sender, event.incarnation)
        if part is None:
            return []
        span = Span("values", *self._ranges[machine])
        updates = self._updates[machine]
        answer = Send(sender, Parameters(fetch.request, self.epoch, self.version, updates), span)
        return [answer, *self._miss(sender, part, fetch.settled)]

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
        return [Persist(checkpoint, self.epoch, self.version, self.updates, self.seen)]

    def _persisted(self, event: Persisted, now: float) -> list[ShardEffect]:
        writing, self._writing = self._writing, None
        wanted, self._wanted = self._wanted, None
        expected = None if writing is None else (writing.checkpoint, writing.version)
        assert (event.checkpoint, event.version) == expected, f"{event} while writing {writing}"
        if self.fenced or writing is None:
            return []
        self._saved = msgspec.structs.replace(writing, file=event.file, sha256=event.sha256)
        effects: list[ShardEffect] = [Send(COORDINATOR, self._saved)]
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
            assert min(part.sequence + 1, part.incarnation, part.lost) >= 0, (name, part)
        if self._wanted is not None:
            assert self._writing is not None, self._wanted
            assert self._wanted > self._writing.checkpoint, (self._wanted, self._writing)
        assert self._saved is None or self._saved.version <= self.version
