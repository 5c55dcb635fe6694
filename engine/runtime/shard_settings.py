"""Settings of a process that holds a shard, or a second copy of one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from partita.engine.parameters.layout import Layout, SharedRange
from partita.engine.parameters.row_payload import n_bytes
from partita.engine.parameters.slots import clipped
from partita.engine.protocol.durability.settings import CHECKPOINT_ONLY, Durability
from partita.engine.protocol.membership import DEFAULT_HEARTBEATS, HeartbeatPolicy
from partita.engine.protocol.message_form import MessageForm
from partita.engine.protocol.shard_effects import ShardRanges
from partita.engine.runtime.push_messages import PushReader, form_of
from partita.engine.runtime.shard_policies import ShardPolicy
from partita.engine.runtime.shard_recovery import LogPlace
from partita.engine.runtime.task import HostContext


@dataclass(frozen=True, kw_only=True)
class ShardSettings:
    """One shard of a run's vectors.

    Args:
        shard: the shard's index.
        layout: where every parameter is.
        run: the run's id.
        folder: of the checkpoints.
        checkpoint: the one to start from; None starts from `initial`.
        initial: a safetensors file of whole parameters.
        precision: of all numbers, "float32" or "float64".
        policy: what happens to gradients.
        keeps_units: the units of work that the checkpoint's file names are those of this run.
        heartbeats: the coordinator's policy.
        durability: who keeps its records.
        logs: where its logs are, and those of the runs that this one goes on from; None: there are none.
        units_per_epoch: how the work is cut that pushes name.
        from_backup: starts from what its backup has, and from no file.
    """

    shard: int
    layout: Layout
    run: str
    folder: Path
    checkpoint: int | None
    initial: Path
    precision: str
    policy: ShardPolicy
    keeps_units: bool = True
    heartbeats: HeartbeatPolicy = DEFAULT_HEARTBEATS
    durability: Durability = CHECKPOINT_ONLY
    logs: LogPlace | None = None
    units_per_epoch: int = 0
    from_backup: bool = False

    def ranges(self, host: HostContext) -> ShardRanges:
        """Returns the numbers that the shard holds, of each machine and fragment, for this host."""
        ranges = {number: (o.shard_start, o.shard_stop) for number, o in self._shared.items()}
        item, rows, forms = np.dtype(self.precision).itemsize, {}, self.forms()
        for number, span in ranges.items() if self.policy.optimizer else ():
            if tables := clipped(self.layout.tables_on(self.shard), *span):
                rows[number] = n_bytes(*span, tables, item, rows_alone=bool(forms))
        machines = len(self.layout.machines)
        return ShardRanges(host.name, host.incarnation, ranges, item, rows, forms, machines)

    @property
    def _shared(self) -> dict[int, SharedRange]:
        """The ranges of the shard, by their numbers, see `ShardRanges`."""
        machines = len(self.layout.machines)
        shared = self.layout.machines_of(self.shard)
        return {one.fragment * machines + one.machine: one for one in shared}

    def reader(self) -> PushReader:
        """Returns a reader of the pushes to the shard."""
        forms = {self._shared[number].shard_start: form for number, form in self.forms().items()}
        tables = self.layout.tables_on(self.shard) if self.policy.optimizer else ()
        return PushReader(forms, tables, self.precision)

    def forms(self) -> dict[int, MessageForm]:
        """Returns the forms of the messages of pushes to each range; none where they are whole gradients."""
        compress, item_bytes = self.policy.compress, np.dtype(self.precision).itemsize
        if compress is None:
            return {}
        shared = self._shared.items()
        return {number: form_of(compress, self.layout, one, item_bytes) for number, one in shared}
