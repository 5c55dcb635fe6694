"""The records of a shard: those of its log, carried out again where it begins, and those that follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from partita.engine.parameters.log import sync_segments
from partita.engine.parameters.vectors import VectorStore
from partita.engine.protocol.durability import BeginSegment, Keep, LogNote, RemoveRecords
from partita.engine.protocol.durability.settings import Log
from partita.engine.protocol.events import Received, stream_of
from partita.engine.protocol.message_form import step_of
from partita.engine.protocol.messages import Push
from partita.engine.protocol.shard_effects import (
    OperationsDone,
    Policy,
    ShardEffect,
    ShardEvent,
    ShardRanges,
)
from partita.engine.runtime.shard_log import ShardLog
from partita.engine.runtime.shard_recovery import Base, IsFinite, Recovery, header_of
from partita.engine.runtime.shard_settings import ShardSettings
from partita.engine.runtime.task import CannotGoOn, HostContext
from partita.engine.transport.payload import Payload
from partita.layers.text import counted

CarryOut = Callable[[ShardEffect], OperationsDone | None]
"""Carries out one effect of a record."""

LEAST_LOG_BYTES: Final = 1 << 30
MOST_PUSHES: Final = 16
"""A log asks for a checkpoint beyond so many bytes, and so many pushes to all parameters."""

SPARE_BYTES: Final = 1 << 16
"""Room for small files that a log leaves on the disk, beside that for a checkpoint of all shards."""


class ShardRecords:
    """Keeps records in a log, if there is one.

    Attributes:
        notes: sentences about the log for the user, given to the machine by `poll`.
    """

    def __init__(self, task: ShardSettings, host: HostContext) -> None:
        """Has no log before `recover`."""
        self._task, self._host = task, host
        self._log: ShardLog | None = None
        self.notes: list[str] = []

    def recover(self, own: ShardRanges, base: Base, carry_out: CarryOut, store: VectorStore) -> Policy:
        """Carries out the records of the log, and begins to keep those that follow.

        Args:
            own: the numbers that the shard holds.
            base: what is loaded already.
            carry_out: carries out one effect of a record.
            store: of the vectors.

        Raises:
            CannotGoOn: the log cannot be used, or none can be written here.
        """
        task = self._task
        if task.logs is None or task.from_backup:
            # Each run counts from 0 again.
            state = base.state if base.run == task.run else base.state.in_another_run(version=0)
            return task.policy.machine(own, state)
        folder = self._host.files.log_folder(task.folder)
        if folder is None:
            raise CannotGoOn(
                f"{own.name} cannot keep a log on its machine, which has no folder of the run; give the "
                "checkpoints as SharedFolder(...), or train with durability='checkpoint'"
            )
        header = header_of(
            own,
            run=task.run,
            shards=task.layout.shards,
            precision=task.precision,
            units_per_epoch=task.units_per_epoch,
            compress="" if task.policy.compress is None else repr(task.policy.compress),
        )
        recovery = Recovery(folder, task.logs, base, header, self._is_finite(own))
        state = recovery.before(lambda state: task.policy.replaying(own, state), carry_out)
        policy = task.policy.machine(
            own, state, lambda policy: recovery.replay(recovery.own, policy, carry_out)
        )
        self.notes += recovery.notes
        if recovery.replayed:
            what = ("record", "records") if task.policy.optimizer is None else ("push", "pushes")
            self.notes.append(f"{counted(recovery.replayed, *what)} of its log carried out again")
        if isinstance(task.durability, Log):
            self._open(recovery, task.durability, folder / task.logs.name, policy.version, store)
        return policy

    def _is_finite(self, own: ShardRanges) -> IsFinite:
        """Returns what looks at the numbers of a push in a log."""
        reader = self._task.reader()

        def is_finite(request: Received, push: Push) -> bool:
            payload, (start, stop) = request.payload, own.ranges[own.number_of(stream_of(request))]
            if not isinstance(payload, Payload) or not payload.n_bytes:
                return True
            try:
                return reader.is_finite(payload, start, stop, step=step_of(push.stop))
            except ValueError:  # it cannot be read either, so nobody has acknowledged it
                return False

        return is_finite

    def _open(
        self, recovery: Recovery, durability: Log, folder: Path, version: int, store: VectorStore
    ) -> None:
        task = self._task
        if folder.parent != task.folder:
            self.notes.append(
                f"its log is on its own machine, in {folder.parent}; it is lost where the shard has to begin "
                "on another one, and when the run ends"
            )
        synced = durability.sync == "disk"
        if synced:
            sync_segments(recovery.content.segments)
        vector_bytes = store.size * store.dtype.itemsize
        reserve = int(1.1 * task.layout.shards * len(store.names()) * vector_bytes) + SPARE_BYTES
        writer = recovery.writer(folder, version, synced=synced, reserve=reserve)
        most = durability.most_bytes or max(LEAST_LOG_BYTES, MOST_PUSHES * vector_bytes)
        self._log = ShardLog(writer, durability, most_bytes=most, wake=self._host.wake)

    def keep(self, effect: Keep | BeginSegment | RemoveRecords) -> None:
        """Keeps a record, or removes those that a checkpoint holds."""
        if self._log is None:
            return
        match effect:
            case Keep(record=record):
                self._log.keep(record)
            case BeginSegment(first=first):
                self._log.begin_segment(first)
            case RemoveRecords(through=through):
                self._log.remove(through)

    def poll(self) -> Iterator[ShardEvent]:
        """Yields notes, and what is kept since the last call."""
        notes, self.notes[:] = list(self.notes), []
        yield from (LogNote(text) for text in notes)
        if self._log is not None:
            yield from self._log.poll()

    def close(self) -> None:
        """Waits for what is being written."""
        if self._log is not None:
            self._log.close()
