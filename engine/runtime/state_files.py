"""Files of a host's state in checkpoints, written on a thread of its own while the host goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from partita.engine.files.background import BackgroundQueue
from partita.engine.files.remote_checkpoints import CheckpointFiles
from partita.engine.parameters.manifest import ShardRecord, UnitsOfRange
from partita.engine.parameters.slots import Slot
from partita.engine.parameters.snapshot import NotFinite, ShardSnapshot
from partita.engine.protocol.checkpoint_messages import SaveProgress
from partita.engine.protocol.events import NotPersisted, Persist, Persisted
from partita.engine.protocol.names import COORDINATOR
from partita.engine.runtime.task import CannotGoOn, HostContext


class NotWritten(CannotGoOn):
    """A checkpoint that must not be written."""


class StateFiles:
    """Writes one file after another. Used by the host's thread alone."""

    def __init__(self, checkpoints: CheckpointFiles, host: HostContext, *, run: str) -> None:
        """Nothing is under way.

        Args:
            checkpoints: the folder.
            host: whose files they are; it is told how far a file is.
            run: the run's id.
        """
        self._checkpoints, self._host, self._run = checkpoints, host, run
        self._queue: Final = BackgroundQueue[Persisted | NotPersisted]("checkpoint", host.wake)

    def start(self, order: Persist, slots: Sequence[Slot], snapshot: ShardSnapshot) -> None:
        """Writes numbers that do not change any more, after the files before them.

        Args:
            order: the checkpoint, and the counts that belong to the numbers.
            slots: the parameters whose numbers they are.
            snapshot: the numbers.
        """
        self._queue.start(partial(self._write, order, tuple(slots), snapshot))

    def finished(self) -> Iterator[Persisted | NotPersisted]:
        """The results since the last call.

        Raises:
            NotWritten: numbers were not finite, and must not become the newest checkpoint.
        """
        yield from self._queue.finished()

    def close(self) -> None:
        """Waits for a file that is being written."""
        self._queue.close()

    def _write(
        self, order: Persist, slots: Sequence[Slot], snapshot: ShardSnapshot
    ) -> Persisted | NotPersisted:
        checkpoint, version = order.checkpoint, order.version
        units = tuple(UnitsOfRange(*span, held) for span, held in order.units.items())
        counts = (dict(order.seen), order.updates, dict(order.stops), dict(order.updates_of), units)
        record = ShardRecord(
            self._run, self._host.name, order.incarnation, version, *counts, loss_scale=order.loss_scale
        )
        try:
            if order.finite:
                snapshot.check_finite()
            file, sha256 = self._checkpoints.write_shard(
                checkpoint, record, slots, snapshot, written=self._progress_of(order)
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
