"""The common work of all shards: a lease, messages that wait for it, and files that a thread writes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.files import load_parameters
from partita.engine.parameters.layout import Layout
from partita.engine.parameters.manifest import ShardRecord
from partita.engine.parameters.reader import Checkpoint
from partita.engine.parameters.storage import NotFinite, ShardSnapshot
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.events import NotPersisted, Persist, Persisted, Received, Tick
from partita.engine.protocol.lease import LeasedShard
from partita.engine.protocol.membership import DEFAULT_HEARTBEATS, HeartbeatPolicy
from partita.engine.protocol.messages import Message, SaveProgress
from partita.engine.protocol.names import COORDINATOR
from partita.engine.runtime.background import BackgroundQueue
from partita.engine.runtime.task import CannotGoOn, HostContext, Role
from partita.engine.transport.payload import PayloadLike


class NotWritten(CannotGoOn):
    """A checkpoint that must not be written."""


@dataclass(frozen=True, kw_only=True)
class ShardTask(ABC):
    """One shard of a run's parameters. A driver's task adds its own settings.

    Args:
        shard: the shard's index.
        layout: where every parameter is.
        run: the run's id.
        folder: of the checkpoints.
        checkpoint: the one to start from; None starts from `initial`.
        initial: a safetensors file of whole parameters.
        precision: of all numbers, "float32" or "float64".
        heartbeats: the coordinator's policy.
    """

    shard: int
    layout: Layout
    run: str
    folder: Path
    checkpoint: int | None
    initial: Path
    precision: str
    heartbeats: HeartbeatPolicy = DEFAULT_HEARTBEATS

    @property
    def threads(self) -> int:
        """See the protocol `HostTask`."""
        return 1

    @property
    def rank(self) -> tuple[int, int]:
        """See the protocol `HostTask`."""
        return 0, 1

    @abstractmethod
    def role(self, host: HostContext) -> Role:
        """See the protocol `HostTask`."""


class ShardRole(Role):
    """A role around a machine that works under a lease. A subclass sets the machine."""

    _machine: LeasedShard

    def __init__(self, task: ShardTask, host: HostContext, *, waiting: tuple[type[Message], ...]) -> None:
        """Opens the folder of the checkpoints.

        Args:
            task: the shard's.
            host: the context of the host.
            waiting: messages that are kept until a lease arrives, the last of each kind from each sender. The
                machine would drop them, and a start (or a pause of the coordinator) would take a second or
                more longer, until they are repeated.
        """
        self._host, self._waiting = host, waiting
        self._run, self._layout = task.run, task.layout
        self._slots = task.layout.slots_of(task.shard)
        self._checkpoints = Checkpoints(task.folder, run=task.run)
        self._files: BackgroundQueue[Persisted | NotPersisted] = BackgroundQueue("checkpoint", host.wake)
        self._early: dict[tuple[str, type[Message]], Received] = {}
        self._ahead_s = 0.0

    def receive(self, event: Received, now: float) -> None:
        """Gives the machine a message, or keeps it until a lease arrives."""
        if isinstance(event.message, self._waiting) and not self._machine.holds_lease(now):
            self._early[event.sender, type(event.message)] = event
            return
        self._handle(event, now)
        if self._early and self._machine.holds_lease(now):
            early, self._early = self._early, {}
            for asked in early.values():
                self._handle(asked, now)

    def poll(self, now: float) -> None:
        """Reports files that are on disk, or could not be written.

        Raises:
            NotWritten: one must not be written.
        """
        for persisted in self._files.finished():
            self._handle(persisted, now)

    def tick(self, now: float) -> None:
        """Lets the machine ask for the next lease."""
        self._handle(Tick(), now)

    def close(self) -> None:
        """Waits for a file that is being written."""
        self._files.close()

    def _handle(self, event: Any, now: float) -> None:
        """Gives the machine an event, and carries out its effects."""
        self._ahead_s = now - time.monotonic()
        self._react(event, now)

    @abstractmethod
    def _react(self, event: Any, now: float) -> None:
        """Carries out the effects of an event."""

    @property
    def _now(self) -> float:
        """The time on the machine's clock, which runs on while effects are carried out."""
        return self._ahead_s + time.monotonic()

    def _send(self, to: str, message: Message, payload: PayloadLike) -> None:
        """Sends a message of the machine, if the lease has not ended meanwhile."""
        if self._machine.may_send(message, self._now):
            self._host.send(to, message, payload)

    def _replaced(self, incarnation: int) -> RuntimeError:
        return RuntimeError(f"another process is {self._host.name} now, of incarnation {incarnation}")

    def _initial(self, file: Path) -> dict[str, Vector]:
        """The shard's parameters in a file of whole parameters."""
        held = {slot.parameter for slot in self._slots}
        return load_parameters(file, dict(self._layout.shapes), only=held)

    def _version_of(self, found: Checkpoint) -> int:
        """The number of the shard's last push or command in a checkpoint; each run counts from 0 again."""
        record = found.records.get(self._host.name)
        return record.version if record is not None and record.run == self._run else 0

    def _write(self, order: Persist, snapshot: ShardSnapshot, *, finite: bool) -> None:
        """Writes a file on a thread, after those before it; `finite` refuses numbers that are not."""
        self._files.start(lambda: self._written(order, snapshot, finite))

    def _written(self, order: Persist, snapshot: ShardSnapshot, finite: bool) -> Persisted | NotPersisted:
        checkpoint, version = order.checkpoint, order.version
        record = ShardRecord(
            self._run,
            self._host.name,
            order.incarnation,
            version,
            dict(order.seen),
            order.updates,
            dict(order.stops),
        )
        try:
            if finite:
                snapshot.check_finite()
            file, sha256 = self._checkpoints.write_shard(
                checkpoint, record, self._slots, snapshot, written=self._progress_of(order)
            )
        except NotFinite as error:
            raise NotWritten(f"checkpoint {checkpoint} was not written: {error}") from error
        except OSError as error:
            return NotPersisted(checkpoint, version, error.strerror or str(error))
        return Persisted(checkpoint, version, file, sha256)

    def _progress_of(self, order: Persist) -> Callable[[int], None]:
        """Reports how far a file is: the coordinator waits as long as that grows."""
        written = 0

        def progress(n_bytes: int) -> None:
            nonlocal written
            written += n_bytes
            self._host.send(COORDINATOR, SaveProgress(order.checkpoint, order.incarnation, written), None)

        return progress
