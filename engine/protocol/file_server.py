"""The machine of the host `files`: serves reads of named files in chunks, and takes new ones exactly once.

A write is known by (writer, incarnation, number). Its chunks are taken in order; one that does not follow the
last is dropped, and the writer sends it again. A file gets its name when all of it is on disk and has the
writer's checksum; only then is it acknowledged. Nothing is left of the file of a writer that has died.

The machine must not know paths, what is in a file, or how it is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from partita.engine.protocol import file_messages as fm
from partita.engine.protocol.events import Received, Refuse, Send, payload_bytes
from partita.engine.protocol.names import FILES
from partita.engine.protocol.permissions import rejection_reason

CHUNK_BYTES: Final = 1 << 20
"""Most bytes of a file in one message."""

MOST_WAITING: Final = 16
"""Chunks of a file that may wait to be written; more are dropped."""

WriteKey: TypeAlias = tuple[str, int, int]
"""The identity of a write: name and incarnation of the writer, and its number of the file."""


# Events.


@dataclass(frozen=True, slots=True)
class Admitted:
    """Event: these processes may send, by host; files of any others are dropped."""

    incarnations: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Found:
    """Event, answers `Find`: the size of the file; or None, and why."""

    to: str
    request: int
    n_bytes: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NotRead:
    """Event, answers `SendChunk`: the chunk could not be read."""

    to: str
    request: int
    reason: str


@dataclass(frozen=True, slots=True)
class Appended:
    """Event, answers `Append`: so many bytes of the file are written; or None, and why not."""

    key: WriteKey
    n_bytes: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """Event, answers `Store`: the file has its name; or `reason` says why not, and nothing is left of it."""

    key: WriteKey
    reason: str = ""


# Effects, beside `Send` and `Refuse`.


@dataclass(frozen=True, slots=True)
class Connect:
    """Effect: answers to this host go to this endpoint."""

    name: str
    incarnation: int
    endpoint: str


@dataclass(frozen=True, slots=True)
class Find:
    """Effect: look for a file; `Found` is the result."""

    to: str
    request: int
    name: str


@dataclass(frozen=True, slots=True)
class SendChunk:
    """Effect: send the bytes `[start, stop)` of a file as a `FileChunk`; `NotRead` if that cannot be done."""

    to: str
    request: int
    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Append:
    """Effect: write the payload after what is written; the first creates the file. `Appended` follows."""

    key: WriteKey
    name: str
    payload: object


@dataclass(frozen=True, slots=True)
class Store:
    """Effect: verify the checksum, force the file to the disk and give it its name; `Stored` follows."""

    key: WriteKey
    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Effect: remove what is there of a file that was not stored."""

    key: WriteKey


@dataclass(frozen=True, slots=True)
class NotePushes:
    """Effect: replace a part's record of a stream."""

    part: str
    incarnation: int
    stream: str
    record: fm.PushRecord


@dataclass(slots=True)
class _Write:
    """A file that is being written, or the last one of its writer."""

    number: int
    name: str
    taken: int = 0  # bytes, in order
    written: int = 0  # of these
    waiting: int = 0  # chunks
    storing: bool = False
    result: fm.FileStored | fm.FileRefused | None = None


class FileServer:
    """The server of one run.

    Attributes:
        most_bytes: of one file that is written.
    """

    def __init__(self, *, most_bytes: int) -> None:
        """Admits nobody yet; `most_bytes` is the size of the largest file that is taken."""
        self.most_bytes: Final = most_bytes
        self._admitted: Mapping[str, int] = {}
        self._writes: Final[dict[tuple[str, int], _Write]] = {}

    def receive(self, event: Any, now: float) -> Sequence[Any]:
        """Returns the effects of an event at `now` (seconds, monotonic), to be carried out in order."""
        match event:
            case Received():
                return self._received(event)
            case Admitted(incarnations=incarnations):
                return self._admit(incarnations)
            case Found(to=to, request=request, n_bytes=None, reason=reason):
                return [Send(to, fm.FileMissing(request, reason))]
            case Found(to=to, request=request, n_bytes=int(n_bytes)):
                return [Send(to, fm.FileFound(request, n_bytes))]
            case NotRead(to=to, request=request, reason=reason):
                return [Send(to, fm.FileMissing(request, reason))]
            case Appended():
                return self._appended(event)
            case Stored(key=key, reason=reason):
                refused = fm.FileRefused(key[2], reason) if reason else fm.FileStored(key[2])
                return self._ended(key, refused)
            case _:
                return []

    def _admit(self, incarnations: Mapping[str, int]) -> list[Any]:
        self._admitted = dict(incarnations)
        gone = [key for key in self._writes if self._admitted.get(key[0]) != key[1]]
        effects: list[Any] = []
        for key in gone:
            effects += self._drop(key)
        return effects

    def _drop(self, key: tuple[str, int]) -> list[Any]:
        write = self._writes.pop(key)
        unfinished = write.result is None and (write.taken or write.storing)
        return [Drop((*key, write.number))] if unfinished else []

    # Messages.

    def _received(self, event: Received) -> Sequence[Any]:
        message, sender = event.message, event.sender
        reason = rejection_reason(message, sender=sender, receiver=FILES, incarnation=event.incarnation)
        if reason is None and self._admitted.get(sender) != event.incarnation:
            reason = f"a message of incarnation {event.incarnation}, which has ended"
        if reason is not None:
            return [Refuse(sender, reason)]
        match message:
            case fm.FilesHello(endpoint=endpoint):
                return [Connect(sender, event.incarnation, endpoint), Send(sender, fm.FilesWelcome())]
            case fm.FindFile(request=request, name=name):
                return [Find(sender, request, name)]
            case fm.ReadFile(request=request, name=name, start=start, stop=stop):
                if not start < stop <= start + CHUNK_BYTES:
                    return [Refuse(sender, f"a ReadFile of {stop - start} bytes")]
                return [SendChunk(sender, request, name, start, stop)]
            case fm.WriteFile():
                return self._take(event, message)
            case fm.FinishFile():
                return self._finish(event, message)
            case fm.SavePushes(stream=stream, record=record):
                if record.incarnation > event.incarnation:
                    return [Refuse(sender, f"a SavePushes of incarnation {record.incarnation}")]
                return [NotePushes(sender, event.incarnation, stream, record)]
            case _:
                return []

    def _write(self, key: tuple[str, int], number: int, name: str) -> tuple[_Write | None, list[Any]]:
        """Returns the write of this number, a new one if it is the highest; None if it is over."""
        write = self._writes.get(key)
        if write is not None and number < write.number:
            return None, []
        if write is not None and number == write.number:
            return write, []
        effects = [] if write is None else self._drop(key)
        write = self._writes[key] = _Write(number, name)
        return write, effects

    def _take(self, event: Received, message: fm.WriteFile) -> list[Any]:
        key, n_bytes = (event.sender, event.incarnation), payload_bytes(event.payload)
        if not 0 < n_bytes <= CHUNK_BYTES:
            return [Refuse(event.sender, f"a WriteFile of {n_bytes} bytes")]
        write, effects = self._write(key, message.number, message.name)
        if write is None:
            return []
        if write.result is not None:
            return [*effects, Send(event.sender, write.result)]
        follows = message.start == write.taken and message.name == write.name and not write.storing
        if not follows or write.waiting >= MOST_WAITING:
            return [*effects, Send(event.sender, fm.FileWritten(write.number, write.written))]
        if write.taken + n_bytes > self.most_bytes:
            effects += self._refuse_write(key, write, f"it has more than {self.most_bytes} bytes")
            return effects
        write.taken += n_bytes
        write.waiting += 1
        return [*effects, Append((*key, write.number), write.name, event.payload)]

    def _refuse_write(self, key: tuple[str, int], write: _Write, reason: str) -> list[Any]:
        write.result = fm.FileRefused(write.number, reason)
        return [Drop((*key, write.number)), Send(key[0], write.result)]

    def _finish(self, event: Received, message: fm.FinishFile) -> list[Any]:
        key = (event.sender, event.incarnation)
        write, effects = self._write(key, message.number, message.name)
        if write is None:
            return []
        if write.result is not None:
            return [*effects, Send(event.sender, write.result)]
        if write.taken != message.n_bytes or write.name != message.name:
            return [*effects, Send(event.sender, fm.FileWritten(write.number, write.written))]
        if write.storing:  # the answer shows that this host is alive
            return [*effects, Send(event.sender, fm.FileWritten(write.number, write.written))]
        write.storing = True
        return [*effects, Store((*key, write.number), write.name, message.sha256)]

    # Results.

    def _of(self, key: WriteKey) -> _Write | None:
        write = self._writes.get(key[:2])
        return write if write is not None and write.number == key[2] and write.result is None else None

    def _appended(self, event: Appended) -> list[Any]:
        write = self._of(event.key)
        if write is None:
            return []
        write.waiting -= 1
        if event.n_bytes is None:
            return self._refuse_write(event.key[:2], write, event.reason)
        write.written = event.n_bytes
        return [Send(event.key[0], fm.FileWritten(write.number, write.written))]

    def _ended(self, key: WriteKey, result: fm.FileStored | fm.FileRefused) -> list[Any]:
        write = self._of(key)
        if write is None:
            return []
        write.result = result
        return [Send(key[0], result)]

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        for (sender, incarnation), write in self._writes.items():
            assert self._admitted.get(sender) == incarnation, (sender, incarnation)
            assert 0 <= write.written <= write.taken <= self.most_bytes, write
            assert 0 <= write.waiting <= MOST_WAITING, write
            assert not (write.storing and write.waiting and write.result is None) or write.taken, write
