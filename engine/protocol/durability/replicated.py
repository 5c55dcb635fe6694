"""A shard with a backup: its records go to the backup before its acknowledgements leave.

While no backup follows, the shard is alone, and acknowledges what it has applied; the coordinator decides
that, by taking the backup out of the directory. A process that begins from the backup first fills itself from
there; requests wait meanwhile. This module must not know what a push is.
"""

from __future__ import annotations

from typing import Final

from typing_extensions import override

from partita.engine.protocol.copy_messages import CopyChunk, CopyRequest, RecordKept
from partita.engine.protocol.durability.backup import PolicyOf
from partita.engine.protocol.durability.chain import Chain
from partita.engine.protocol.durability.fill import Fill, WriteChunk, chunk_from
from partita.engine.protocol.durability.records import Keep, Kept
from partita.engine.protocol.events import Delivered, Received, Refuse, Send, Tick
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.membership import DEFAULT_HEARTBEATS, HeartbeatPolicy
from partita.engine.protocol.messages import RecordCopy
from partita.engine.protocol.shard import Shard
from partita.engine.protocol.shard_effects import Policy, ShardEffect, ShardEvent, ShardRanges


class ReplicatedShard(Shard):
    """A shard that has a backup, or waits for one."""

    def __init__(
        self,
        own: ShardRanges,
        policy: Policy,
        backup: str,
        *,
        size: int,
        fill: Fill | None = None,
        policy_of: PolicyOf | None = None,
        heartbeats: HeartbeatPolicy = DEFAULT_HEARTBEATS,
        retry_s: float = 1.0,
    ) -> None:
        """Creates a shard without a lease.

        Args:
            own: its name, incarnation and ranges.
            policy: with the counts of the checkpoint that it starts from.
            backup: name of the backup's host.
            size: how many numbers it holds.
            fill: of a shard that begins with what its backup has.
            policy_of: makes its policy, then.
            heartbeats: how often it asks for a lease, and how long one lasts.
            retry_s: seconds before a record that is not confirmed is sent again.
        """
        super().__init__(own, policy, heartbeats=heartbeats, keeps=True)
        self._size: Final = size
        self._policy_of: Final = policy_of
        self._fill = fill
        self._chain: Final = Chain(backup, retry_s=retry_s)

    @override
    def holds_lease(self, now: float) -> bool:
        return self._fill is None and super().holds_lease(now)

    @override
    def receive(self, event: ShardEvent, now: float) -> list[ShardEffect]:
        match event:
            case Received(sender=self._chain.backup):
                return self._from_backup(event, now)
            case Delivered(message=RecordCopy(number=number)):
                return self._kept(self._chain.deliver(number, now))
            case PeersChanged(peers=peers):
                return self._backup_is(peers.get(self._chain.backup), now)
            case Tick():
                if self._fill is not None:  # what it lacks now is on its way
                    return [*self._fill.tick(now)]
                return [*self._chain.tick(now), *self._chain.report(now), *super().receive(event, now)]
        return self._keep(super().receive(event, now), now)

    # Records.

    def _keep(self, effects: list[ShardEffect], now: float) -> list[ShardEffect]:
        """Sends the records among the effects to the backup; where none follows, nothing waits for them."""
        kept: list[ShardEffect] = []
        for effect in effects:
            kept += self._chain.send(effect.record, now) if isinstance(effect, Keep) else (effect,)
        return kept if self._chain.follower is not None or self._fill is not None else self._all_kept(kept)

    def _all_kept(self, effects: list[ShardEffect]) -> list[ShardEffect]:
        return effects + self._kept(self.version)

    def _kept(self, number: int) -> list[ShardEffect]:
        """Sends what waited for the records up to a number."""
        return super().receive(Kept(number), 0.0)

    def _from_backup(self, event: Received, now: float) -> list[ShardEffect]:
        chain, message = self._chain, event.message
        match message:
            case RecordKept(number=number):
                return self._kept(chain.take(number, now)) if event.incarnation == chain.follower else []
            case CopyRequest() if self._fill is None:
                return self._copy(event, message)
            case CopyChunk() if self._fill is not None:
                return self._chunk(event, message, self._fill, now)
        return []

    def _copy(self, event: Received, request: CopyRequest) -> list[ShardEffect]:
        """Sends the backup numbers, as they are now."""
        known, chain = event.incarnation == self._chain.follower, self._chain
        if not known and (request.start or not chain.begin(event.incarnation, self.version)):
            return []
        return [chunk_from(chain.backup, request, self._size, self.version, self.policy.counts())]

    # The copy that it begins with.

    def _backup_is(self, incarnation: int | None, now: float) -> list[ShardEffect]:
        """Notes the backup in the directory. One that has left is waited for no more."""
        changed = self._chain.backup_is(incarnation)
        fill = self._fill
        if fill is None:
            return self._kept(self.version) if changed else []
        if fill.has_all:
            return self._begin(fill, now) if changed else []
        # A source that is gone too soon is the coordinator's to notice: it replaces this process.
        return [fill.ask(now)] if incarnation is not None and fill.counts is None else []

    def _chunk(self, event: Received, chunk: CopyChunk, fill: Fill, now: float) -> list[ShardEffect]:
        reason = fill.rejection_reason(chunk, event.payload)
        if reason is not None:
            return [Refuse(event.sender, reason)]
        effects: list[WriteChunk | Send] = fill.take(chunk, event.payload, now)
        return [*effects, *(self._begin(fill, now, source=event.incarnation) if fill.is_confirmed else ())]

    def _begin(self, fill: Fill, now: float, *, source: int | None = None) -> list[ShardEffect]:
        """Begins to work with what the backup had; if that still lives, it follows from here."""
        assert fill.counts is not None and self._policy_of is not None
        self.policy, self._fill = self._policy_of(fill.counts), None
        if source is not None:
            self._chain.begin(source, self.version)
        return [*self._kept(self.version), *self.receive_early(now)]

    @override
    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        super().validate()
        self._chain.validate()
        assert self._fill is None or self._chain.follower is None
