"""A shard's files, written by a thread of their own: its host answers meanwhile."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence

from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.manifest import ShardRecord
from partita.engine.parameters.slots import Slot
from partita.engine.parameters.storage import NotFinite, Snapshot
from partita.engine.protocol.events import Persist, Persisted
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
        self._checkpoints, self._slots, self._run, self._link = checkpoints, slots, run, link
        self._thread: threading.Thread | None = None
        self._outcomes: deque[Persisted | BaseException] = deque()

    def write(self, persist: Persist, snapshot: Snapshot, *, finite: bool) -> None:
        """Begins, or waits its turn.

        Args:
            persist: what for.
            snapshot: which nothing changes any more.
            finite: whether numbers that are not must be refused.
        """
        arguments = (self._thread, persist, snapshot, finite)
        self._thread = threading.Thread(target=self._write, args=arguments, name="checkpoint")
        self._thread.start()

    def finished(self) -> Iterator[Persisted]:
        """Files that are on disk since the last call.

        Raises:
            NotWritten: one could not be written, or must not be. It is never tried again.
        """
        while self._outcomes:
            outcome = self._outcomes.popleft()
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome

    def close(self) -> None:
        """Waits for files that are being written."""
        if self._thread is not None:
            self._thread.join()

    def _write(
        self, before: threading.Thread | None, persist: Persist, snapshot: Snapshot, finite: bool
    ) -> None:
        if before is not None:
            before.join()
        name = self._link.name
        record = ShardRecord(
            self._run, name, persist.epoch, persist.version, dict(persist.seen), persist.updates
        )
        try:
            if finite:
                snapshot.check_finite()
            file, sha256 = self._checkpoints.write_shard(persist.checkpoint, record, self._slots, snapshot)
            self._outcomes.append(Persisted(persist.checkpoint, persist.version, file, sha256))
        except (OSError, NotFinite) as error:
            self._outcomes.append(NotWritten(f"checkpoint {persist.checkpoint} was not written: {error}"))
        except BaseException as error:  # noqa: BLE001 - raised by `finished`, on the host's thread
            self._outcomes.append(error)
        self._link.wake()
