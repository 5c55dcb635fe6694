"""Sending end of a stream link, see `stream_link`: seals and sends records as the connection takes them."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from partita.engine.protocol.messages import Message, SetUp
from partita.engine.transport.rendezvous import TOKEN_BYTES
from partita.engine.transport.seal import CAN_SEAL, TAG_BYTES, Seal, new_key
from partita.engine.transport.sockets import stream_listener, tune_stream
from partita.engine.transport.stream_link import CLEAR, LENGTH_BYTES, RECORD_BYTES, SEALED
from partita.engine.transport.wire import INLINE_BYTES, StreamOffer, encode_inline, encode_shared

_OFFER_S: Final = 10.0  # after which nobody is waited for any more
_AGAIN_S: Final = 5.0  # between two offers
_MAX_STRANGERS: Final = 8  # connections without a token; the oldest is closed
_MAX_ACCEPTED: Final = 64  # connections for one offer, after which it is given up


@dataclass(eq=False, slots=True)
class _Outgoing:
    """A message on its way: its header, and the memory in which its payload lies."""

    header: bytes
    views: deque[memoryview]
    n_bytes: int
    seal_payload: bool


class StreamSender:
    """Sending end of a link to one peer. One thread at a time; only the mailbox's owner calls `serve`.

    Args:
        host: numeric address at which the peer reaches this host.
        clear: whether payloads are sent as they are.
        on_change: called when `watched` may have changed.
    """

    def __init__(self, host: str, *, clear: bool, on_change: Callable[[], None] = lambda: None) -> None:
        self._host, self.clear, self._on_change = host, clear, on_change
        self._listener: socket.socket | None = None
        self._strangers: deque[socket.socket] = deque()
        self._channel: socket.socket | None = None
        self._queue: deque[_Outgoing] = deque()
        self._unsent = memoryview(b"")  # of the record that is being sent
        self._record = memoryview(bytearray(RECORD_BYTES + TAG_BYTES))
        self._token = self._key = b""
        self._offered_at, self._accepted = float("-inf"), 0
        self.is_broken = False  # `serve` closes it
        self.is_fresh = True  # nothing was sent on it
        self._waits = False  # for the connection to take more, as the mailbox knows
        self.waiting_bytes = 0

    @property
    def is_open(self) -> bool:
        """Returns whether the peer has connected, and messages take the link."""
        return self._channel is not None and not self.is_broken

    @property
    def has_backlog(self) -> bool:
        """Returns whether something waits for the connection to take more."""
        return self.is_open and bool(self._queue or self._unsent)

    @property
    def watched(self) -> list[tuple[int, bool]]:
        """Descriptors for the mailbox's poll, each with whether it waits to be writable too."""
        opened = [s for s in (self._listener, *self._strangers) if s is not None]
        found = [(one.fileno(), False) for one in opened]
        if self._channel is not None:
            found.append((self._channel.fileno(), self.has_backlog))
        return found

    def offer(self, number: int, now: float) -> StreamOffer | None:
        """Begins to listen for the peer, and returns the offer to be sent before message `number`."""
        is_busy = self._channel is not None or self._listener is not None
        if not CAN_SEAL or is_busy or now < self._offered_at + _AGAIN_S:
            return None
        self._offered_at, self._accepted = now, 0
        try:
            self._listener = stream_listener(self._host)
        except OSError:
            return None
        self._token, self._key = secrets.token_bytes(TOKEN_BYTES), new_key()
        self._on_change()
        return StreamOffer(self._token, self._listener.getsockname()[1], self._key, self.clear, number)

    def send(self, number: int, message: Message, payload: Sequence[memoryview] | None, n_bytes: int) -> None:
        """Sends a message as far as the connection takes it. The payload must stay as it is.

        Raises:
            ValueError: the encoded message is too large.
        """
        seal_payload = not self.clear or isinstance(message, SetUp)
        if 0 < n_bytes <= INLINE_BYTES:
            header = encode_inline(number, message, n_bytes, payload or ())
        else:
            place = None if not n_bytes else SEALED if seal_payload else CLEAR
            header = encode_shared(number, message, None if payload is None else n_bytes, place)
        views = deque(payload or ()) if n_bytes > INLINE_BYTES else deque[memoryview]()
        self.is_fresh = False
        self._queue.append(_Outgoing(header, views, n_bytes, seal_payload))
        self.waiting_bytes += n_bytes
        self.flush()

    def flush(self) -> None:
        """Sends what waits until the connection takes no more."""
        if self._channel is None:
            return
        try:
            while self._unsent or self._next_record():
                sent = self._channel.send(self._unsent)
                self._unsent = self._unsent[sent:]
        except BlockingIOError:
            pass
        except OSError:
            self.is_broken = True
        if self.is_broken or self.has_backlog != self._waits:
            self._waits = self.has_backlog
            self._on_change()

    def _next_record(self) -> bool:
        """Prepares the next record; False where all has been sent."""
        if not self._queue:
            return False
        first = self._queue[0]
        if first.header:
            n = len(first.header) + TAG_BYTES
            record = memoryview(bytearray(LENGTH_BYTES + n))
            record[:LENGTH_BYTES] = n.to_bytes(LENGTH_BYTES, "little")
            self._seal.close(first.header, record[LENGTH_BYTES:])
            self._unsent, first.header = record, b""
        else:
            self._unsent = self._payload_record(first)
        if not first.views:
            self._queue.popleft()
            self.waiting_bytes -= first.n_bytes
        return True

    def _payload_record(self, message: _Outgoing) -> memoryview:
        """Takes the next record from a payload: one within one buffer is not copied before it is sealed, and
        one that is not sealed is a whole buffer.
        """
        view = message.views[0]
        if not message.seal_payload:
            return message.views.popleft()
        if view.nbytes >= RECORD_BYTES or len(message.views) == 1:
            data, rest = view[:RECORD_BYTES], view[RECORD_BYTES:]
            if rest:
                message.views[0] = rest
            else:
                message.views.popleft()
        else:
            data = memoryview(_joined(message.views))
        out = self._record[: data.nbytes + TAG_BYTES]
        self._seal.close(data, out)
        return out

    def serve(self, now: float) -> bool:
        """Accepts the peer, and finds out whether it has left. Returns whether the link has ended."""
        if self._listener is not None:
            self._accept()
            if now > self._offered_at + _OFFER_S or self._accepted == _MAX_ACCEPTED:
                self._close_listener()
        if self._channel is not None and not self.is_broken:
            try:
                self.is_broken = not self._channel.recv(1)  # a receiver never writes: it has left
            except BlockingIOError:
                pass
            except OSError:
                self.is_broken = True
        if not self.is_broken:
            return False
        self.close()
        return True

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):
            while self._accepted < _MAX_ACCEPTED:
                come, _ = self._listener.accept()
                self._accepted += 1
                come.setblocking(False)
                tune_stream(come)
                self._strangers.append(come)
                if len(self._strangers) > _MAX_STRANGERS:
                    self._strangers.popleft().close()
        for stranger in list(self._strangers):
            try:
                token = stranger.recv(TOKEN_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                token = b""
            self._strangers.remove(stranger)
            if not hmac.compare_digest(token, self._token):
                stranger.close()
                continue
            self._accepted = 0
            self._channel, self._seal, self.is_fresh = stranger, Seal(self._key), True
            self._waits = False
            self._close_listener()
            self._on_change()
            return

    def _close_listener(self) -> None:
        for one in (self._listener, *self._strangers):
            if one is not None:
                one.close()
        self._listener = None
        self._strangers.clear()
        self._on_change()

    def close(self) -> None:
        """Closes the link; what waits is dropped."""
        self._close_listener()
        if self._channel is not None:
            self._channel.close()
        self._channel, self._unsent, self.is_broken = None, memoryview(b""), False
        self._queue.clear()
        self.waiting_bytes = 0
        self._on_change()


def _joined(views: deque[memoryview]) -> bytearray:
    """Takes one record from the front of several buffers."""
    data = bytearray()
    while views and len(data) < RECORD_BYTES:
        view = views.popleft()
        missing = RECORD_BYTES - len(data)
        data += view[:missing]
        if view.nbytes > missing:
            views.appendleft(view[missing:])
    return data
