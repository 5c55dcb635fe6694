"""A host's connection to `files`: a thread with a mailbox of its own, so that the host's is not disturbed."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

from partita.engine.protocol.events import Refuse, Send, Tick
from partita.engine.protocol.file_client import (
    Arrived,
    FileClient,
    ReadFailed,
    SendPiece,
    SizeKnown,
    StartWrite,
    WantBytes,
    WantSize,
    WriteEnded,
    WriteProgress,
)
from partita.engine.protocol.file_messages import PushRecord, SavePushes, WriteFile
from partita.engine.protocol.messages import Message, Peer
from partita.engine.protocol.names import FILES
from partita.engine.transport.mailbox import Mailbox, MailboxClosed, PeerStalled, UnknownPeer
from partita.engine.transport.payload import Payload, PayloadLike

_TICK_S: Final = 0.25
_WAIT_S: Final = 0.5

Sink: TypeAlias = Callable[[int, Payload | None, str], None]
"""Receives the bytes of a file: their first position and the payload, or None and why there is none."""

_T = TypeVar("_T")


class FilesUnavailable(OSError):
    """A file of the coordinator's machine cannot be read or written from here."""


class _Write:
    """A file that is being sent, from the memory where it lies."""

    def __init__(self, pieces: Iterable[bytes | memoryview], written: Callable[[int], None]) -> None:
        self.pieces = [memoryview(piece).cast("B") for piece in pieces]
        sha256 = hashlib.sha256()
        for piece in self.pieces:
            sha256.update(piece)
        self.sha256: Final = sha256.hexdigest()
        self.n_bytes: Final = sum(piece.nbytes for piece in self.pieces)
        self.written = written
        self.done: Future[None] = Future()

    def of(self, start: int, stop: int) -> list[memoryview]:
        """The bytes `[start, stop)`."""
        found, at = [], 0
        for piece in self.pieces:
            first, last = max(start - at, 0), min(stop - at, piece.nbytes)
            if first < last:
                found.append(piece[first:last])
            at += piece.nbytes
        return found


class FileConnection:
    """Reads and writes files of the coordinator's machine. From any thread.

    Attributes:
        on_wait: called about twice a second while a thread waits.
    """

    def __init__(self, mailbox: Mailbox, name: str, server: Peer, *, on_wait: Callable[[], None]) -> None:
        """Starts the thread, which closes the mailbox at its end.

        Args:
            mailbox: of this connection alone.
            name: of the host.
            server: the host `files`.
            on_wait: called about twice a second while a thread waits.
        """
        self.on_wait = on_wait
        self._mailbox, self._machine = mailbox, FileClient(name, mailbox.endpoint)
        self._events: SimpleQueue[Any] = SimpleQueue()
        self._sizes: defaultdict[str, deque[Future[int]]] = defaultdict(deque)
        self._sinks: dict[tuple[str, int], Sink] = {}
        self._writes: deque[_Write] = deque()  # the first one is being sent
        self._lock = threading.Lock()
        self._closing = False
        mailbox.allow([server])
        mailbox.connect(server)
        self._thread = threading.Thread(target=self._run, name="files", daemon=True)
        self._thread.start()

    def size(self, name: str) -> int:
        """Returns the size of a file in bytes. Raises FilesUnavailable."""
        future: Future[int] = Future()
        with self._lock:
            self._sizes[name].append(future)
            self._events.put(WantSize(name))
        self._mailbox.wake()
        return self.wait(future)

    def read(self, name: str, ranges: Iterable[tuple[int, int]], sink: Sink, *, ahead: bool = False) -> None:
        """Asks for ranges of a file, each of at most `CHUNK_BYTES`; `sink` receives them on another thread.

        A range that is under way already, by its first byte, is not asked for again.
        """
        with self._lock:
            for start, stop in ranges:
                self._sinks.setdefault((name, start), sink)
                self._events.put(WantBytes(name, start, stop, ahead))
        self._mailbox.wake()

    def write(
        self,
        name: str,
        pieces: Iterable[bytes | memoryview],
        *,
        written: Callable[[int], None] = lambda n_bytes: None,
    ) -> str:
        """Writes a file, whose memory must not change before this returns; returns its SHA-256.

        `written` is called, on another thread, with the number of bytes that are on the way to the disk.

        Raises:
            FilesUnavailable: it could not be stored; nothing is left of it.
        """
        write = _Write(pieces, written)
        with self._lock:
            self._writes.append(write)
            self._events.put(StartWrite(name, write.n_bytes, write.sha256))
        self._mailbox.wake()
        self.wait(write.done)
        return write.sha256

    def note(self, stream: str, record: PushRecord) -> None:
        """Sends a part's record of a stream. Does not wait."""
        self._send(SavePushes(stream, record), None)

    def wait(self, future: Future[_T]) -> _T:
        """Returns the result of a future, with a sign of life while it is not there."""
        while True:
            try:
                return future.result(_WAIT_S)
            except TimeoutError:
                if future.done():
                    raise
                self.on_wait()

    def close(self) -> None:
        """Ends the thread. Whoever waits gets an error."""
        self._closing = True
        self._mailbox.wake()
        self._thread.join()

    # The thread.

    def _run(self) -> None:
        ticked_at = float("-inf")
        try:
            while not self._closing:
                for event in self._mailbox.receive(_TICK_S):
                    self._give(event)
                while not self._events.empty():
                    self._give(self._events.get())
                now = time.monotonic()
                if now - ticked_at >= _TICK_S:
                    ticked_at = now
                    self._give(Tick())
        finally:
            self._fail("this host ends")
            self._mailbox.close()

    def _give(self, event: Any) -> None:
        for effect in self._machine.receive(event, time.monotonic()):
            self._carry_out(effect)

    def _carry_out(self, effect: Any) -> None:
        match effect:
            case Send(message=message):
                self._send(message, None)
            case SendPiece(number=number, name=name, start=start, stop=stop):
                self._send(WriteFile(number, name, start), self._writes[0].of(start, stop))
            case SizeKnown(name=name, n_bytes=n_bytes):
                self._take(self._sizes[name]).set_result(n_bytes)
            case Arrived(name=name, start=start, payload=payload):
                assert isinstance(payload, Payload), effect
                self._sink(name, start)(start, payload, "")
                payload.release()
            case ReadFailed(name=name, start=None, reason=reason):
                self._take(self._sizes[name]).set_exception(FilesUnavailable(reason))
            case ReadFailed(name=name, start=int(start), reason=reason):
                self._sink(name, start)(start, None, reason)
            case WriteProgress(n_bytes=n_bytes):
                self._writes[0].written(n_bytes)
            case WriteEnded(reason=reason):
                done = self._take(self._writes).done
                if reason:
                    done.set_exception(FilesUnavailable(reason))
                else:
                    done.set_result(None)
            case Refuse():
                self._mailbox.counters.refused_messages += 1
            case _:
                raise AssertionError(effect)

    def _take(self, waiting: deque[_T]) -> _T:
        with self._lock:
            return waiting.popleft()

    def _sink(self, name: str, start: int) -> Sink:
        with self._lock:  # a range that was asked for while it came has no other sink
            return self._sinks.pop((name, start), _nowhere)

    def _send(self, message: Message, payload: PayloadLike) -> None:
        try:
            self._mailbox.send(FILES, message, payload)
        except PeerStalled:
            self._mailbox.wake()  # the machine sends again what is not answered
        except (UnknownPeer, MailboxClosed):
            return

    def _fail(self, reason: str) -> None:
        error = FilesUnavailable(reason)
        with self._lock:
            sizes = [future for futures in self._sizes.values() for future in futures]
            sinks, self._sinks = self._sinks, {}
            writes = [write.done for write in self._writes]
        for size in sizes:
            size.set_exception(error)
        for done in writes:
            done.set_exception(error)
        for (_, start), sink in sinks.items():
            sink(start, None, reason)


def _nowhere(start: int, payload: Payload | None, reason: str) -> None:
    """Drops bytes that have come before."""
