"""The machine of a host's connection to `files`: reads chunks of files, and writes one file after another.

Requests are bounded by a window. What is wanted now is asked for before what is fetched ahead. The transport
loses nothing while a connection lasts; what one loses is asked for again, when nothing has come for a while.

The machine must not know where chunks are kept, or what is in a file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from partita.engine.protocol import file_messages as fm
from partita.engine.protocol.events import Received, Refuse, Send
from partita.engine.protocol.file_server import CHUNK_BYTES, MOST_WAITING
from partita.engine.protocol.names import FILES
from partita.engine.protocol.permissions import rejection_reason

WINDOW_BYTES: Final = 8 << 20
"""Most bytes that are asked for, or sent, and not answered."""

RESEND_S: Final = 2.0
"""Seconds without an answer after which what is open is sent again."""

PATIENCE_S: Final = 60.0
"""Seconds without an answer after which a request fails."""


# Events.


@dataclass(frozen=True, slots=True)
class WantSize:
    """Event: the size of a file is wanted; `SizeKnown` or `ReadFailed` is the answer."""

    name: str


@dataclass(frozen=True, slots=True)
class WantBytes:
    """Event: the bytes `[start, stop)` of a file are wanted, now or `ahead` of their use."""

    name: str
    start: int
    stop: int
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class StartWrite:
    """Event: a file is to be written, after those before it; `WriteEnded` is the answer."""

    name: str
    n_bytes: int
    sha256: str


# Effects, beside `Send` and `Refuse`.


@dataclass(frozen=True, slots=True)
class SizeKnown:
    """Effect: the file has so many bytes."""

    name: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """Effect: the payload is the bytes `[start, stop)` of a file."""

    name: str
    start: int
    stop: int
    payload: object


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """Effect: the file cannot be read; `start` is None where its size was wanted."""

    name: str
    start: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class SendPiece:
    """Effect: send the bytes `[start, stop)` of the file that is being written as a `WriteFile`."""

    number: int
    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class WriteProgress:
    """Effect: so many bytes of the file are written."""

    n_bytes: int


@dataclass(frozen=True, slots=True)
class WriteEnded:
    """Effect: the file is stored; or `reason` says why not."""

    reason: str = ""


@dataclass(slots=True)
class _Open:
    """A request that is sent and not answered; `start` is None where it is for a size."""

    name: str
    start: int | None
    stop: int = 0

    @property
    def n_bytes(self) -> int:
        return 0 if self.start is None else self.stop - self.start


@dataclass(slots=True)
class _Writing:
    """The file that is being written."""

    number: int
    order: StartWrite
    sent: int = 0
    written: int = 0


@dataclass(slots=True)
class _Queues:
    """Requests that are not sent yet."""

    sizes: deque[str] = field(default_factory=deque)
    now: deque[WantBytes] = field(default_factory=deque)
    ahead: deque[WantBytes] = field(default_factory=deque)
    writes: deque[StartWrite] = field(default_factory=deque)

    def __bool__(self) -> bool:
        return bool(self.sizes or self.now or self.ahead or self.writes)


class FileClient:
    """The connection of one process of a host.

    Attributes:
        connected: whether the server has answered.
    """

    def __init__(self, name: str, endpoint: str, *, window_bytes: int = WINDOW_BYTES) -> None:
        """Has sent nothing yet.

        Args:
            name: of the host.
            endpoint: of the inbox to which answers come.
            window_bytes: most bytes that are asked for and not answered, and of a write that are sent.
        """
        self._name: Final = name
        self._hello: Final = fm.FilesHello(endpoint)
        self._window: Final = window_bytes
        self.connected = False
        self._queues: Final = _Queues()
        self._open: Final[dict[int, _Open]] = {}
        self._next = 0
        self._wanted: Final[dict[tuple[str, int], WantBytes]] = {}  # queued or sent, and not answered
        self._open_bytes = 0
        self._write: _Writing | None = None
        self._writes = 0
        self._heard_at = self._sent_at = float("-inf")  # heard: an answer, or the first request after none

    @property
    def idle(self) -> bool:
        """Returns whether nothing is open or waits."""
        return not self._queues and not self._open and self._write is None

    def receive(self, event: Any, now: float) -> Sequence[Any]:
        """Returns the effects of an event at `now` (seconds, monotonic), to be carried out in order."""
        if isinstance(event, Received):
            return self._received(event, now)
        if self.idle:
            self._heard_at = now
        match event:
            case WantSize(name=name):
                self._queues.sizes.append(name)
            case WantBytes():
                self._want(event)
            case StartWrite():
                self._queues.writes.append(event)
            case _:
                return self._tick(now)
        return self._go_on(now)

    # Requests.

    def _want(self, wanted: WantBytes) -> None:
        """Queues a request, unless it is queued or sent already. What was fetched ahead may be wanted now."""
        key = (wanted.name, wanted.start)
        known = self._wanted.get(key)
        if known is None:
            self._wanted[key] = wanted
            (self._queues.ahead if wanted.ahead else self._queues.now).append(wanted)
        elif known.ahead and not wanted.ahead and known in self._queues.ahead:
            self._queues.ahead.remove(known)
            self._queues.now.append(wanted)
            self._wanted[key] = wanted

    def _go_on(self, now: float) -> list[Any]:
        """Sends what the window has room for."""
        if not self.connected:
            return self._greet(now)
        effects: list[Any] = []
        queues = self._queues
        while queues.sizes:
            effects.append(self._ask(_Open(queues.sizes.popleft(), None)))
        for queue in (queues.now, queues.ahead):
            while queue and (not self._open_bytes or self._fits(queue[0])):
                one = queue.popleft()
                effects.append(self._ask(_Open(one.name, one.start, one.stop)))
        if self._write is None and queues.writes:
            self._writes += 1
            self._write = _Writing(self._writes, queues.writes.popleft())
        if effects:
            self._sent_at = now
        return effects + self._send_pieces(now)

    def _fits(self, wanted: WantBytes) -> bool:
        return self._open_bytes + wanted.stop - wanted.start <= self._window

    def _ask(self, request: _Open) -> Send:
        self._next += 1
        self._open[self._next] = request
        self._open_bytes += request.n_bytes
        return self._send(self._next, request)

    def _send(self, number: int, request: _Open) -> Send:
        if request.start is None:
            return Send(FILES, fm.FindFile(number, request.name))
        return Send(FILES, fm.ReadFile(number, request.name, request.start, request.stop))

    def _greet(self, now: float) -> list[Any]:
        if now - self._sent_at < RESEND_S / 4:
            return []
        self._sent_at = now
        return [Send(FILES, self._hello)]

    def _send_pieces(self, now: float) -> list[Any]:
        write = self._write
        if write is None:
            return []
        effects: list[Any] = []
        size, most = write.order.n_bytes, min(self._window, MOST_WAITING * CHUNK_BYTES)
        while write.sent < size and write.sent - write.written < most:
            stop = min(write.sent + CHUNK_BYTES, size)
            effects.append(SendPiece(write.number, write.order.name, write.sent, stop))
            write.sent = stop
            if stop == size:
                effects.append(self._finish(write))
        if effects:
            self._sent_at = now
        return effects

    def _finish(self, write: _Writing) -> Send:
        order = write.order
        return Send(FILES, fm.FinishFile(write.number, order.name, order.n_bytes, order.sha256))

    # Answers.

    def _received(self, event: Received, now: float) -> Sequence[Any]:
        message = event.message
        reason = rejection_reason(
            message, sender=event.sender, receiver=self._name, incarnation=event.incarnation
        )
        if reason is not None or event.sender != FILES:
            return [Refuse(event.sender, reason or "a message that is not of 'files'")]
        self._heard_at = self._sent_at = now
        effects: list[Any] = []
        match message:
            case fm.FilesWelcome():
                if not self.connected:
                    self.connected = True
            case fm.FileFound(request=request, n_bytes=n_bytes):
                if (found := self._answered(request)) is not None:
                    effects.append(SizeKnown(found.name, n_bytes))
            case fm.FileChunk(request=request):
                if (found := self._answered(request)) is not None:
                    assert found.start is not None, found
                    effects.append(Arrived(found.name, found.start, found.stop, event.payload))
            case fm.FileMissing(request=request, reason=why):
                if (found := self._answered(request)) is not None:
                    effects.append(ReadFailed(found.name, found.start, why))
            case fm.FileWritten() | fm.FileStored() | fm.FileRefused():
                effects += self._written(message)
        return effects + self._go_on(now)

    def _answered(self, number: int) -> _Open | None:
        found = self._open.pop(number, None)
        if found is not None:
            self._open_bytes -= found.n_bytes
            if found.start is not None:
                del self._wanted[found.name, found.start]
        return found

    def _written(self, message: fm.FileWritten | fm.FileStored | fm.FileRefused) -> list[Any]:
        write = self._write
        if write is None or message.number != write.number:
            return []
        if isinstance(message, fm.FileWritten):
            if message.n_bytes <= write.written:
                return []
            write.written = min(message.n_bytes, write.order.n_bytes)
            write.sent = max(write.sent, write.written)
            return [WriteProgress(write.written)]
        self._write = None
        if isinstance(message, fm.FileRefused):
            return [WriteEnded(message.reason or "it was refused")]
        return [WriteEnded()]

    # Time.

    def _tick(self, now: float) -> list[Any]:
        if self.idle:
            return []
        if now - self._heard_at >= PATIENCE_S:
            return self._give_up(now)
        if not self.connected:
            return self._greet(now)
        if now - self._sent_at < RESEND_S:
            return []
        self._sent_at = now
        effects: list[Any] = [Send(FILES, self._hello)]  # a connection back may be what is missing
        effects += [self._send(number, request) for number, request in self._open.items()]
        if self._write is not None:
            self._write.sent = self._write.written
            if self._write.sent == self._write.order.n_bytes:
                effects.append(self._finish(self._write))
            effects += self._send_pieces(now)
        return effects

    def _give_up(self, now: float) -> list[Any]:
        """Fails all that is open or waits."""
        reason = f"the coordinator's machine has not answered for {now - self._heard_at:.0f} s"
        effects: list[Any] = [ReadFailed(one.name, one.start, reason) for one in self._open.values()]
        effects += [ReadFailed(name, None, reason) for name in self._queues.sizes]
        effects += [ReadFailed(one.name, one.start, reason) for one in self._queues.now]
        effects += [ReadFailed(one.name, one.start, reason) for one in self._queues.ahead]
        effects += [WriteEnded(reason)] * ((self._write is not None) + len(self._queues.writes))
        for queue in (self._queues.sizes, self._queues.now, self._queues.ahead, self._queues.writes):
            queue.clear()
        self._open.clear()
        self._wanted.clear()
        self._open_bytes, self._write = 0, None
        return effects

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        assert self._open_bytes == sum(one.n_bytes for one in self._open.values()), self._open
        assert len(self._wanted) == len(self._queues.now) + len(self._queues.ahead) + len(
            [one for one in self._open.values() if one.start is not None]
        ), self._wanted
        assert self._open_bytes <= max(self._window, CHUNK_BYTES), self._open_bytes
        if self._write is not None:
            assert 0 <= self._write.written <= self._write.sent <= self._write.order.n_bytes, self._write
