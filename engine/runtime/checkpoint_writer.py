"""A shard's files, written by a thread of their own: its host answers meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.manifest import ShardRecord
from partita.engine.parameters.slots import Slot
from partita.engine.parameters.storage import NotFinite, Snapshot
from partita.engine.protocol.events import NotPersisted, Persist, Persisted
from partita.engine.protocol.messages import SaveProgress
from partita.engine.protocol.names import COORDINATOR
from partita.engine.runtime.background import BackgroundQueue
from partita.engine.runtime.task import CannotGoOn, HostContext


class NotWritten(CannotGoOn):
    """A checkpoint that must not be written."""


class CheckpointWriter:
    """Writes one file after the other, in the order asked for. Used by the host's thread alone."""

    def __init__(self, checkpoints: Checkpoints, slots: Sequence[Slot], run: str, link: HostContext) -> None:
        """Nothing is under way.

        Args:
            checkpoints: where files go.
            slots: what the shard's vectors consist of.
            run: the run's id.
            link: of the host; it is woken when a file is there, and tells the coordinator how far one is.
        """
        self._checkpoints, self._slots, self._run, self._link = checkpoints, slots, run, link
        self._beside: BackgroundQueue[Persisted | NotPersisted] = BackgroundQueue("checkpoint", link.wake)

    def write(self, persist: Persist, snapshot: Snapshot, *, finite: bool) -> None:
        """Begins, or waits its turn.

        Args:
            persist: what for.
            snapshot: which nothing changes any more.
            finite: whether numbers that are not must be refused.
        """
        self._beside.start(lambda: self._written(persist, snapshot, finite))

    def finished(self) -> Iterator[Persisted | NotPersisted]:
        """Files that are on disk since the last call, and those that could not be written.

        Raises:
            NotWritten: one must not be written.
        """
        return self._beside.finished()

    def close(self) -> None:
        """Waits for files that are being written."""
        self._beside.close()

    def _written(self, persist: Persist, snapshot: Snapshot, finite: bool) -> Persisted | NotPersisted:
        record = ShardRecord(
            self._run,
            self._link.name,
            persist.epoch,
            persist.version,
            dict(persist.seen),
            persist.updates,
            dict(persist.stops),
        )
        try:
            if finite:
                snapshot.check_finite()
            file, sha256 = self._checkpoints.write_shard(
                persist.checkpoint, record, self._slots, snapshot, written=self._progress_of(persist)
            )
        except NotFinite as error:
            raise NotWritten(f"checkpoint {persist.checkpoint} was not written: {error}") from error
        except OSError as error:
            return NotPersisted(persist.checkpoint, persist.version, error.strerror or str(error))
        return Persisted(persist.checkpoint, persist.version, file, sha256)

    def _progress_of(self, persist: Persist) -> Callable[[int], None]:
        """Tells the coordinator how far a file is: it waits as long as that grows."""
        written = 0

        def progress(n_bytes: int) -> None:
            nonlocal written
            written += n_bytes
            self._link.send(COORDINATOR, SaveProgress(persist.checkpoint, persist.epoch, written), None)

        return progress
