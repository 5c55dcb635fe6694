"""A shard: the interpreter of the shard machine over storage and files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.files import load_parameters
from partita.engine.parameters.layout import Layout, gather
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.parameters.storage import NotFinite, Storage
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.events import Persist, Refuse, Send
from partita.engine.protocol.lease import Fenced
from partita.engine.protocol.membership import DEFAULT_HEARTBEATS, HeartbeatPolicy
from partita.engine.protocol.messages import Fetch, Push
from partita.engine.protocol.names import shard_name
from partita.engine.protocol.parameter_shard import ApplyGradient, ParameterShard, ShardEvent, Watermark
from partita.engine.runtime.checkpoint_writer import CheckpointWriter
from partita.engine.runtime.leased_role import LeasedRole
from partita.engine.runtime.push_log import pushes_to_shard
from partita.engine.runtime.task import CannotGoOn, HostContext
from partita.engine.transport.payload import Payload, PayloadLike


class SpoiltPush(CannotGoOn):
    """A push that is not finite: the shard's values are lost, and its last checkpoint is what is left."""


@dataclass(frozen=True)
class ShardTask:
    """One shard of the parameters.

    Args:
        shard: which.
        layout: where every parameter is.
        optimizer: of the replicas; a shard applies what it leaves to one.
        run: the run's id.
        folder: of the checkpoints.
        checkpoint: the one to start from; None starts from `initial`.
        initial: a safetensors file of whole parameters.
        precision: of the values, "float32" or "float64".
        acknowledged: folder in which parts note what shards have acknowledged.
        pace: of the coordinator.
    """

    shard: int
    layout: Layout
    optimizer: Optimizer
    run: str
    folder: Path
    checkpoint: int | None
    initial: Path
    precision: str
    acknowledged: Path
    heartbeats: HeartbeatPolicy = DEFAULT_HEARTBEATS

    @property
    def threads(self) -> int:
        """See `HostTask`."""
        return 1

    @property
    def rank(self) -> tuple[int, int]:
        """See `HostTask`."""
        return 0, 1

    def role(self, link: HostContext) -> ShardRole:
        """See `HostTask`."""
        return ShardRole(self, link)


@dataclass(frozen=True)
class _Start:
    """What a shard begins with; the defaults are a run's that begins from nothing."""

    values: Vector
    state: Mapping[str, Vector] | None = None
    version: int = 0
    updates: int = 0
    seen: Mapping[str, Watermark] = field(default_factory=dict)
    stops: Mapping[str, int] = field(default_factory=dict)


class ShardRole(LeasedRole):
    """Holds a slice of the parameters for the parts whose parameters they are."""

    def __init__(self, task: ShardTask, link: HostContext) -> None:
        self._task, self._link = task, link
        self._slots = task.layout.slots_of(task.shard)
        self._checkpoints = Checkpoints(task.folder, run=task.run)
        start = self._start()
        self.version = start.version
        self._storage = Storage(task.optimizer, start.values, start.state)
        self._gradient = np.zeros(self._storage.size, self._storage.dtype)
        self._machine = ParameterShard(
            link.name,
            epoch=link.incarnation,
            ranges={o.machine: (o.shard_start, o.shard_stop) for o in task.layout.machines_of(task.shard)},
            version=start.version,
            updates=start.updates,
            seen=start.seen,
            stops=start.stops,
            acknowledged=pushes_to_shard(task.acknowledged, link.name),
            item_bytes=self._storage.dtype.itemsize,
            lease_s=task.heartbeats.lease_s,
            heartbeat_s=task.heartbeats.heartbeat_s,
        )
        writer = CheckpointWriter(self._checkpoints, self._slots, task.run, link)
        super().__init__(self._machine, writer, waiting=(Fetch, Push))  # a part has one of each under way

    def _start(self) -> _Start:
        task, shapes = self._task, dict(self._task.layout.shapes)
        if task.checkpoint is None:
            held = {slot.parameter for slot in self._slots}
            return _Start(
                gather(self._slots, load_parameters(task.initial, shapes, only=held), task.precision)
            )
        found = self._checkpoints.open(task.checkpoint, shapes, slots=self._slots)
        name = shard_name(task.shard)
        record = found.records.get(name)
        snapshot = found.snapshot(self._slots)
        return _Start(
            snapshot.values.astype(task.precision, copy=False),  # the checkpoint may be of another plan
            snapshot.state,  # the storage casts it likewise
            version=record.version if record is not None and record.run == task.run else 0,
            updates=found.updates(self._slots),
            seen=found.seen(name, task.run),
            stops=found.stops(name, task.run),
        )

    def _tell(self, event: ShardEvent, now: float) -> None:
        began = time.monotonic()
        for effect in self._machine.receive(event, now):
            match effect:
                case ApplyGradient():
                    self._apply(effect)
                case Send(to=to, message=message, payload=span):
                    numbers: PayloadLike = None if span is None else self._storage.read(span)
                    self._say(to, message, numbers, now=now, began=began)
                case Persist():
                    self._writer.write(effect, self._storage.snapshot(), finite=True)
                case Fenced(epoch=epoch):
                    raise self._replaced(epoch)
                case Refuse(sender=sender, reason=reason):
                    self._link.refuse(sender, reason)

    def _apply(self, apply: ApplyGradient) -> None:
        assert isinstance(apply.payload, Payload)
        gradient = self._gradient[apply.span.start : apply.span.stop]
        apply.payload.copy_into(gradient)
        apply.payload.release()
        try:
            self._storage.apply(apply.span, gradient, apply.updates)
        except NotFinite as error:
            raise SpoiltPush(str(error)) from error
