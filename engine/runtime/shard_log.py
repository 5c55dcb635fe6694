"""The log of a shard at work: one thread writes, and forces to the disk, all that has come meanwhile.

The host's thread goes on applying gradients; it learns of what is kept by `poll`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

from partita.engine.parameters.log import LogFull, LogWriter
from partita.engine.parameters.log_format import LoggedRequest
from partita.engine.protocol.durability import Kept, Log, LogNote, Record
from partita.engine.protocol.messages import Malformed, encode
from partita.engine.runtime.task import CannotGoOn
from partita.engine.transport.payload import Payload

PROCESS_SYNC_S: Final = 0.1
"""Most seconds between two syncs of a log with `sync="process"`."""

RETRY_S: Final = 0.5
GIVE_UP_S: Final = 120.0
"""Seconds without room for a record after which the run ends."""


REPORT_S: Final = 5.0
"""Seconds between two reports that there is no room."""


SAY_AGAIN_S: Final = 60.0
"""Seconds within which a log that is full again and again says so once."""


class LogFailed(CannotGoOn):
    """The log cannot be written: the run must not go on as if it could."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A record that is not written, and the payload that is read until it is."""

    record: LoggedRequest
    payload: Payload | None


@dataclass(slots=True)
class _Full:
    """Times (seconds) since which there is no room, and of the last report of it."""

    since: float
    reported_at: float


class ShardLog:
    """Keeps records in the order given. Used by the host's thread alone.

    A payload is read where it lies until its record is written, see `Payload.second`.
    """

    def __init__(
        self, open_log: Callable[[], LogWriter], settings: Log, *, most_bytes: int, wake: Callable[[], None]
    ) -> None:
        """Starts the thread.

        Args:
            open_log: makes the writer of the shard's segments, on the thread.
            settings: what is kept.
            most_bytes: size of the records behind a checkpoint beyond which it asks for the next.
            wake: called, from the thread, when `poll` has something.
        """
        self._open_log, self._wake = open_log, wake
        self._syncs: Final = settings.sync == "disk"
        self._most_bytes: Final = most_bytes
        self._events: SimpleQueue[Kept | LogNote | BaseException] = SimpleQueue()
        self._changed: Final = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._boundaries: list[int] = []  # numbers with which segments begin
        self._newest = 0  # records up to this one are in the newest checkpoint
        self._removes = self._removed = 0  # and up to this one in that before it, too
        self._closed = False
        self._writer: LogWriter | None = None
        self._asked_bytes = self._asked_at = 0  # size at which a checkpoint was asked for, after this record
        self._full: _Full | None = None
        self._said_at = float("-inf")  # when the user was told that there is no room
        self._synced_at = time.monotonic()
        self._thread: Final = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def keep(self, record: Record) -> None:
        """Writes a record behind those before it; `Kept` follows."""
        request = record.request
        assert not isinstance(request.message, Malformed), request
        own = request.payload.second() if isinstance(request.payload, Payload) else None
        pieces = None if own is None else own.pieces
        kept = LoggedRequest(
            record.number, request.sender, request.incarnation, encode(request.message), pieces
        )
        with self._changed:
            self._waiting.append(_Waiting(kept, own))
            self._changed.notify()

    def begin_segment(self, first: int) -> None:
        """Begins a segment with this record: a checkpoint will hold those before it."""
        with self._changed:
            self._boundaries.append(first)

    def remove(self, through: int) -> None:
        """Notes what a committed checkpoint holds, and removes the records that the one before it has, too.

        If the newest checkpoint is damaged, the one before it and the log have all. Where there is no room,
        the newest is enough, and what it holds need not be written.
        """
        with self._changed:
            if through > self._newest:
                self._removes, self._newest = self._newest, through
                self._changed.notify()

    def poll(self) -> Iterator[Kept | LogNote]:
        """Yields what has happened since the last call.

        Raises:
            LogFailed: the log cannot be written.
        """
        while not self._events.empty():
            event = self._events.get()
            if isinstance(event, OSError):
                raise LogFailed(
                    f"the log of the shard failed ({event.strerror or event}); what was not acknowledged is "
                    "not in it. Look at the disk, then resume"
                ) from event
            if isinstance(event, BaseException):
                raise event
            yield event

    def close(self) -> None:
        """Writes what is waiting, if that is possible at once, and ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    # The thread.

    def _run(self) -> None:
        try:
            while self._turn():
                pass
            if self._writer is not None:
                self._writer.sync()
        except BaseException as error:  # noqa: BLE001 - raised again on the host's thread
            self._report(error)
        finally:
            if self._writer is not None:
                self._writer.close()

    def _report(self, event: Kept | LogNote | BaseException) -> None:
        self._events.put(event)
        self._wake()

    def _turn(self) -> bool:
        """Waits for something to do, and does it. Returns whether there will be more."""
        with self._changed:
            self._changed.wait_for(self._has_work, self._patience())
            batch, removes = list(self._waiting), self._removable
            if self._closed and (self._full is not None or not batch):
                return False
        try:
            writer = self._writer = self._writer or self._open_log()
            if removes > self._removed:
                if removes >= writer.next:
                    writer.skip(removes + 1)
                writer.remove(removes)
                self._removed = removes
            self._write(writer, [one.record for one in batch])
            writer.remove(removes)
        except LogFull as error:
            self._wait_for_room(error)
            return True
        self._full = None
        self._written(batch)
        self._ask_for_checkpoint(writer)
        return True

    @property
    def _removable(self) -> int:
        return self._removes if self._full is None else self._newest

    def _has_work(self) -> bool:
        if self._closed or self._removable > self._removed:
            return True
        return self._full is None and (bool(self._waiting) or self._writer is None)

    def _patience(self) -> float | None:
        if self._full is not None:
            return RETRY_S
        return None if self._syncs else PROCESS_SYNC_S

    def _write(self, writer: LogWriter, records: Sequence[LoggedRequest]) -> None:
        """Writes the records that no checkpoint holds, and makes them safe. Raises LogFull, OSError."""
        while self._boundaries and records and self._boundaries[0] <= records[-1].number:
            first = self._boundaries[0]
            writer.append([one for one in records if writer.next <= one.number < first])
            if first == writer.next:
                writer.begin_segment()
            del self._boundaries[0]
        writer.append([one for one in records if writer.next <= one.number])
        now = time.monotonic()
        if self._syncs or now - self._synced_at >= PROCESS_SYNC_S:
            writer.sync()
            self._synced_at = now

    def _written(self, batch: Sequence[_Waiting]) -> None:
        if not batch:
            return
        with self._changed:
            del self._waiting[: len(batch)]
        for one in batch:
            if one.payload is not None:
                one.payload.release()
        self._report(Kept(batch[-1].record.number))

    def _wait_for_room(self, error: LogFull) -> None:
        """Reports that there is no room, and again from time to time: the shard is not to be replaced."""
        now, text = time.monotonic(), ""
        if self._full is None:
            self._full = _Full(now, now)
            if now - self._said_at >= SAY_AGAIN_S:
                self._said_at = now
                text = (
                    f"{error.strerror}; it acknowledges nothing until there is room, or for {GIVE_UP_S:g} s"
                )
        elif now - self._full.since >= GIVE_UP_S:
            raise OSError(error.errno, f"{error.strerror}, and not for {GIVE_UP_S:g} s")
        elif now - self._full.reported_at < REPORT_S:
            return
        self._full.reported_at = now
        self._report(LogNote(text, wants_checkpoint=True))

    def _ask_for_checkpoint(self, writer: LogWriter) -> None:
        """Asks for a checkpoint when the log is too large, and again when it has doubled since."""
        if writer.n_bytes <= self._most_bytes:
            return
        with self._changed:
            newest = self._newest
        if newest > self._asked_at:
            self._asked_at, self._asked_bytes = newest, 0
        n_bytes = writer.bytes_above(newest)
        if n_bytes > max(self._most_bytes, 2 * self._asked_bytes):
            self._asked_bytes = n_bytes
            self._report(LogNote("", wants_checkpoint=True))
