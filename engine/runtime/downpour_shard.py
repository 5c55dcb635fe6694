"""A shard under Downpour: the interpreter of the shard's machine over storage and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from partita.engine.parameters.layout import gather
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.parameters.storage import NotFinite, Storage
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.events import Persist, Refuse, Send
from partita.engine.protocol.lease import Fenced
from partita.engine.protocol.messages import Fetch, Push
from partita.engine.protocol.parameter_shard import ApplyGradient, ParameterShard, ShardEvent, Watermark
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

    def role(self, host: HostContext) -> DownpourShardRole:
        """See `HostTask`."""
        return DownpourShardRole(self, host)


@dataclass(frozen=True)
class _Start:
    """The state that a shard begins with; the defaults are a run's that begins from nothing."""

    values: Vector
    state: Mapping[str, Vector] | None = None
    version: int = 0
    updates: int = 0
    seen: Mapping[str, Watermark] = field(default_factory=dict)
    stops: Mapping[str, int] = field(default_factory=dict)


class DownpourShardRole(ShardRole):
    """Holds a slice of the parameters for the parts whose parameters they are."""

    _machine: ParameterShard

    def __init__(self, task: DownpourShardTask, host: HostContext) -> None:
        super().__init__(task, host, waiting=(Fetch, Push))  # a part has one of each under way
        start = self._start(task)
        self.version = start.version
        self._storage = Storage(task.optimizer, start.values, start.state)
        self._gradient = np.zeros(self._storage.size, self._storage.dtype)
        self._machine = ParameterShard(
            host.name,
            epoch=host.incarnation,
            ranges={o.machine: (o.shard_start, o.shard_stop) for o in task.layout.machines_of(task.shard)},
            version=start.version,
            updates=start.updates,
            seen=start.seen,
            stops=start.stops,
            acknowledged=pushes_to_shard(task.acknowledged, host.name),
            item_bytes=self._storage.dtype.itemsize,
            lease_s=task.heartbeats.lease_s,
            heartbeat_s=task.heartbeats.heartbeat_s,
        )

    def _start(self, task: DownpourShardTask) -> _Start:
        if task.checkpoint is None:
            return _Start(gather(self._slots, self._initial(task.initial), task.precision))
        found = self._checkpoints.open(task.checkpoint, dict(task.layout.shapes), slots=self._slots)
        snapshot, name = found.snapshot(self._slots), self._host.name
        return _Start(
            snapshot.values.astype(task.precision, copy=False),  # the checkpoint may be of another plan
            snapshot.state,  # the storage casts it likewise
            version=self._version_of(found),
            updates=found.updates(self._slots),
            seen=found.seen(name, task.run),
            stops=found.stops(name, task.run),
        )

    def _react(self, event: ShardEvent, now: float) -> None:
        for effect in self._machine.receive(event, now):
            match effect:
                case ApplyGradient():
                    self._apply(effect)
                case Send(to=to, message=message, payload=span):
                    self._send(to, message, None if span is None else self._storage.read(span))
                case Persist():
                    self._write(effect, self._storage.snapshot(), finite=True)
                case Fenced(epoch=epoch):
                    raise self._replaced(epoch)
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
