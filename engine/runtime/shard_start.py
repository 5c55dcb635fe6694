"""The vectors with which a shard begins: those of a checkpoint, or the first point."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from partita.engine.files.remote_checkpoints import CheckpointFiles
from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.formats import CheckpointError
from partita.engine.parameters.layout import gather
from partita.engine.parameters.vector import Vector
from partita.engine.parameters.vectors import VectorStore
from partita.engine.protocol.apply_on_arrival import RestoredState
from partita.engine.protocol.commands import POINT
from partita.engine.runtime.shard_recovery import Base, goes_on
from partita.engine.runtime.shard_settings import ShardSettings
from partita.engine.runtime.task import HostContext


class VectorLoader:
    """Fills a shard's store."""

    def __init__(
        self,
        task: ShardSettings,
        host: HostContext,
        checkpoints: CheckpointFiles,
        store: VectorStore,
        *,
        check_open: Callable[[], None],
    ) -> None:
        """Loads nothing yet.

        Args:
            task: of the shard.
            host: whose files are read.
            checkpoints: of the run.
            store: is filled.
            check_open: raises where the host has been closed meanwhile.
        """
        self._task, self._host, self._checkpoints, self._store = task, host, checkpoints, store
        self._slots = task.layout.slots_of(task.shard)
        self._check_open = check_open

    def begin(self, notes: list[str]) -> Base:
        """Loads the checkpoint; where that is damaged, the newest older one to which the log goes back.

        Args:
            notes: gets a sentence for the user in that case.

        Raises:
            CheckpointError: it is damaged, and the log does not go back.
        """
        task, files = self._task, self._checkpoints
        try:
            return self.load(task.checkpoint)
        except CheckpointError as error:
            if task.logs is None or task.checkpoint is None or not isinstance(files, Checkpoints):
                raise
            for older in (*(number for number in files.complete() if number < task.checkpoint), None):
                with suppress(CheckpointError):
                    base = self.load(older)
                    if goes_on(task.folder, task.logs, self._host.name, base.state.version):
                        begins = "the start" if older is None else f"checkpoint {older}"
                        notes.append(f"{error}; it begins from {begins} and its log")
                        return base
            raise

    def load(self, checkpoint: int | None) -> Base:
        """Loads all vectors from a checkpoint, or the first point."""
        task = self._task
        if checkpoint is None:
            held = {slot.parameter for slot in self._slots}
            whole = self._host.files.parameters(task.initial, dict(task.layout.shapes), only=held)
            self._store.refill((POINT,), lambda _, out: gather(self._slots, whole, out=out))
            return Base(None, RestoredState(), self._store.target(POINT))
        found = self._checkpoints.open(checkpoint, dict(task.layout.shapes), slots=self._slots)

        def fill(name: str, out: Vector) -> None:
            kind = "values" if name == POINT else f"state.{name}"
            found.gather(self._slots, kind, out=out)
            self._check_open()

        self._store.refill((POINT, *found.common_names), fill)
        name = self._host.name
        record = found.records.get(name)
        run = found.manifest.run if record is None else record.run
        state = RestoredState(
            version=0 if record is None else record.version,
            updates=found.updates(self._slots),
            seen=found.seen(name, run),
            stops=found.stops(name, run),
            updates_of=found.updates_of(name, run),
            units=found.units(name) if task.keeps_units else {},
        )
        return Base(run, state, self._store.target(POINT))
