"""The backup of a shard: its task, and the body of its machine, over vectors of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from partita.engine.parameters.row_payload import between
from partita.engine.protocol.durability.backup import ApplyWithin, Backup
from partita.engine.protocol.durability.snapshots import SnapshotBackup
from partita.engine.protocol.names import shard_name
from partita.engine.runtime.shard import ShardTask
from partita.engine.runtime.shard_body import ShardBody
from partita.engine.runtime.task import HostContext


@dataclass(frozen=True)
class BackupTask:
    """A second copy of a shard, which it fills from there.

    Args:
        shard: the shard's own task.
    """

    shard: ShardTask

    @property
    def threads(self) -> int:
        """See the protocol `HostTask`."""
        return self.shard.threads

    @property
    def rank(self) -> tuple[int, int]:
        """See the protocol `HostTask`."""
        return self.shard.rank

    def role(self, host: HostContext) -> tuple[Backup, BackupBody]:
        """See the protocol `HostTask`."""
        task = self.shard
        body = BackupBody(task, host, is_empty=True)
        own = task.ranges(host)
        kind = Backup if task.policy.optimizer is not None else SnapshotBackup
        machine = kind(
            own,
            shard_name(task.shard),
            body.size,
            lambda counts: task.policy.copied(own, counts),
            number_bytes=body.number_bytes,
            heartbeats=task.heartbeats,
        )
        return machine, body


class BackupBody(ShardBody):
    """A shard's vectors, to ranges of which gradients may be applied alone."""

    @override
    def carry_out(self, effect: Any, now: float) -> Any:
        if isinstance(effect, ApplyWithin):
            self._apply_within(effect)
            return None
        return super().carry_out(effect, now)

    def _apply_within(self, effect: ApplyWithin) -> None:
        for piece in self.pieces(effect.apply):
            for start, stop in effect.ranges:
                for part in between(piece, start, stop):
                    self.apply_piece(part, effect.apply.updates, effect.apply.scale)
