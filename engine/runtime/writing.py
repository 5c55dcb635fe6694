"""A shard's files, written by a thread of their own: its host answers meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.manifest import ShardRecord
from partita.engine.parameters.slots import Slot
from partita.engine.parameters.storage import NotFinite, Snapshot
from partita.engine.protocol.events import Persist, Persisted
from partita.engine.runtime.beside import Beside
from partita.engine.runtime.task import CannotGoOn, Link


class NotWritten(CannotGoOn):
    """A checkpoint that could not, or must not, be written."""


class Writer:
    """Writes one file after the other, in the order asked for. Used by the host's thread alone."""

    def __init__(self, checkpoints: Checkpoints, slots: Sequence[Slot], run: str, link: Link) -> None:
        """Nothing is under way.

        Args:
            checkpoints: where files go.
            slots: what the shard's vectors consist of.
            run: the run's id.
            link: of the host; it is woken when a file is there.
        """
        self._checkpoints, self._slots, self._run, self._name = checkpoints, slots, run, link.name
        self._beside: Beside[Persisted] = Beside("checkpoint", link.wake)

    def write(self, persist: Persist, snapshot: Snapshot, *, finite: bool) -> None:
        """Begins, or waits its turn.

        Args:
            persist: what for.
            snapshot: which nothing changes any more.
            finite: whether numbers that are not must be refused.
        """
        self._beside.start(lambda: self._written(persist, snapshot, finite))

    def finished(self) -> Iterator[Persisted]:
        """Files that are on disk since the last call.

        Raises:
            NotWritten: one could not be written, or must not be. It is never tried again.
        """
        return self._beside.finished()

    def close(self) -> None:
        """Waits for files that are being written."""
        self._beside.close()

    def _written(self, persist: Persist, snapshot: Snapshot, finite: bool) -> Persisted:
        record = ShardRecord(
            self._run,
            self._name,
            persist.epoch,
            persist.version,
            dict(persist.seen),
            persist.updates,
            dict(persist.stops),
        )
        try:
            if finite:
                snapshot.check_finite()
            file, sha256 = self._checkpoints.write_shard(persist.checkpoint, record, self._slots, snapshot)
        except (OSError, NotFinite) as error:
            raise NotWritten(f"checkpoint {persist.checkpoint} was not written: {error}") from error
        return Persisted(persist.checkpoint, persist.version, file, sha256)
