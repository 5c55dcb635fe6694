"""A shard under Downpour: the interpreter of the shard's machine over storage and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from typing_extensions import override

from partita.engine.parameters.layout import gather
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.parameters.storage import NotFinite, Storage
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.events import Persist, Refuse, Send
from partita.engine.protocol.lease import Fenced
from partita.engine.protocol.messages import Fetch, Push
from partita.engine.protocol.parameter_shard import ApplyGradient, ParameterShard, RestoredState, ShardEvent
from partita.engine.runtime.push_log import pushes_to_shard
from partita.engine.runtime.shard_role import ShardRole, ShardTask
from partita.engine.runtime.task import CannotGoOn, HostContext
from partita.engine.transport.payload import Payload


class SpoiltPush(CannotGoOn):
    """A push that is not finite: the shard's values are lost, and its last checkpoint is what is left."""


@dataclass(frozen=True, kw_only=True)
class DownpourShardTask(ShardTask):
    """One shard of the parameters.

    Args:
        optimizer: of the replicas; a shard applies what it leaves to one.
        acknowledged: folder in which parts note the pushes that shards have acknowledged.
    """

    optimizer: Optimizer
    acknowledged: Path

    @override
    def role(self, host: HostContext) -> DownpourShardRole:
        return DownpourShardRole(self, host)


class DownpourShardRole(ShardRole):
    """Holds a slice of the parameters for the parts whose parameters they are."""

    _machine: ParameterShard

    def __init__(self, task: DownpourShardTask, host: HostContext) -> None:
        super().__init__(task, host, waiting=(Fetch, Push))  # a part has one of each under way
        values, state, restored = self._start(task)
        self.version = restored.version
        self._storage = Storage(task.optimizer, values, state)
        self._gradient = np.zeros(self._storage.size, self._storage.dtype)
        self._machine = ParameterShard(
            host.name,
            incarnation=host.incarnation,
            ranges={o.machine: (o.shard_start, o.shard_stop) for o in task.layout.machines_of(task.shard)},
            restored=restored,
            acknowledged=pushes_to_shard(task.acknowledged, host.name),
            item_bytes=self._storage.dtype.itemsize,
            heartbeats=task.heartbeats,
        )

    def _start(self, task: DownpourShardTask) -> tuple[Vector, Mapping[str, Vector] | None, RestoredState]:
        """Returns the values, the optimizer's state and the counts that the shard begins with."""
        if task.checkpoint is None:
            return gather(self._slots, self._initial(task.initial), task.precision), None, RestoredState()
        found = self._checkpoints.open(task.checkpoint, dict(task.layout.shapes), slots=self._slots)
        snapshot, name = found.snapshot(self._slots), self._host.name
        restored = RestoredState(
            version=self._version_of(found),
            updates=found.updates(self._slots),
            seen=found.seen(name, task.run),
            stops=found.stops(name, task.run),
        )
        # The checkpoint may be of another plan; the storage casts the state likewise.
        return snapshot.values.astype(task.precision, copy=False), snapshot.state, restored

    def _react(self, event: ShardEvent, now: float) -> None:
        for effect in self._machine.receive(event, now):
            match effect:
                case ApplyGradient():
                    self._apply(effect)
                case Send(to=to, message=message, payload=span):
                    self._send(to, message, None if span is None else self._storage.read(span))
                case Persist():
                    self._write(effect, self._storage.snapshot(), finite=True)
                case Fenced(incarnation=incarnation):
                    raise self._replaced(incarnation)
                case Refuse(sender=sender, reason=reason):
                    self._host.refuse(sender, reason)

    def _apply(self, effect: ApplyGradient) -> None:
        assert isinstance(effect.payload, Payload)
        gradient = self._gradient[effect.span.start : effect.span.stop]
        effect.payload.copy_into(gradient)
        effect.payload.release()
        try:
            self._storage.apply(effect.span, gradient, effect.updates)
        except NotFinite as error:
            raise SpoiltPush(str(error)) from error
