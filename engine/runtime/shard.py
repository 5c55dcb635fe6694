"""The task of a shard: its machine, and the body that carries out what the machine decides."""

from __future__ import annotations

from dataclasses import dataclass

from partita.engine.protocol.durability.fill import Fill
from partita.engine.protocol.durability.replicated import ReplicatedShard
from partita.engine.protocol.durability.settings import Replicated
from partita.engine.protocol.durability.snapshots import SnapshotShard
from partita.engine.protocol.names import backup_name
from partita.engine.protocol.shard import Shard
from partita.engine.protocol.shard_effects import Policy, ShardRanges
from partita.engine.runtime.shard_body import ShardBody
from partita.engine.runtime.shard_settings import ShardSettings
from partita.engine.runtime.task import HostContext


@dataclass(frozen=True, kw_only=True)
class ShardTask(ShardSettings):
    """One shard of a run's vectors, with the settings of `ShardSettings`."""

    @property
    def threads(self) -> int:
        """See the protocol `HostTask`."""
        return 1

    @property
    def rank(self) -> tuple[int, int]:
        """See the protocol `HostTask`."""
        return 0, 1

    def role(self, host: HostContext) -> tuple[Shard, ShardBody]:
        """See the protocol `HostTask`."""
        body = ShardBody(self, host, is_empty=self.from_backup)
        own = self.ranges(host)
        policy = body.recovered(own)
        if isinstance(self.durability, Replicated):
            return self._replicated(own, policy, body), body
        return Shard(own, policy, heartbeats=self.heartbeats, keeps=self.durability.keeps), body

    def _replicated(self, own: ShardRanges, policy: Policy, body: ShardBody) -> Shard:
        backup, size = backup_name(self.shard), body.size
        kind = ReplicatedShard if self.policy.optimizer is not None else SnapshotShard
        return kind(
            own,
            policy,
            backup,
            size=size,
            fill=Fill(backup, size, number_bytes=body.number_bytes) if self.from_backup else None,
            policy_of=lambda counts: self.policy.copied(own, counts),
            heartbeats=self.heartbeats,
        )
