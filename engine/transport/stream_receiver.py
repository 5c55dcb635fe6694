"""Receiving end of a stream link, see `stream_link`: reads records into the memory of the payload."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from partita.engine.transport.buffer_pool import BufferPool, Memory
from partita.engine.transport.seal import TAG_BYTES, BrokenSeal, Seal
from partita.engine.transport.sockets import stream_connection
from partita.engine.transport.stream_link import CLEAR, LENGTH_BYTES, RECORD_BYTES, SEALED
from partita.engine.transport.wire import (
    INLINE_BYTES,
    MAX_MESSAGE_BYTES,
    MalformedFrames,
    MessageStart,
    StreamOffer,
    decode_envelope,
)

_MAX_HEADER_BYTES: Final = MAX_MESSAGE_BYTES + INLINE_BYTES + 4096
_READ_BYTES: Final = 1 << 25  # in one turn, so that other senders are served too
_WAKE_BYTES: Final = 1 << 19  # of a large payload that are read in a turn, at least


@dataclass(eq=False, slots=True)
class Landed:
    """A payload that has arrived whole. Valid until it is released."""

    buffer: Memory
    view: memoryview
    is_clear: bool
    link: StreamReceiver
    is_shared: bool = False
    is_released: bool = False

    def slice_at(self, place: int, n_bytes: int) -> Landed:
        """Returns itself, when its message is delivered."""
        assert self.view.nbytes == n_bytes and self.is_clear == (place == CLEAR), (place, n_bytes)
        self.link.undelivered_bytes -= n_bytes
        return self

    def release(self) -> None:
        """Lets the memory be used for another payload."""
        if not self.is_released:
            self.is_released = True
            self.link.pool.give_back(self.buffer)


Arrived: TypeAlias = tuple[bytes, Landed | None]
"""The header of a message, and its payload, unless that is in the header."""


class StreamReceiver:
    """Receiving end of a link, and the payloads that have landed."""

    ring = None  # the memory of no other process

    def __init__(
        self, host: str, offer: StreamOffer, *, max_payload: int, on_close: Callable[[int], None]
    ) -> None:
        """Begins to connect.

        Args:
            host: numeric address of the sender.
            offer: the sender's.
            max_payload: largest payload that is accepted (bytes).
            on_close: called with the channel's descriptor before that is closed.

        Raises:
            OSError: there is no way to it.
        """
        self._max_payload, self._on_close = max_payload, on_close
        self._seal, self._token = Seal(offer.key), offer.token
        self.pool = BufferPool()
        self.undelivered_bytes = 0  # of payloads whose messages wait for earlier ones
        self._record = memoryview(bytearray(RECORD_BYTES + TAG_BYTES))
        self._start: tuple[bytes, int, bool] | None = None  # header, bytes, clear: of a payload that arrives
        self._landing: Memory | None = None
        self._at = 0
        self._want = memoryview(bytearray(LENGTH_BYTES))  # what is read now, and how much of it is there
        self._has = 0
        self._is_length = True
        self._wake_bytes = 1
        self._channel: socket.socket | None = stream_connection(host, offer.port)

    @property
    def is_alive(self) -> bool:
        """Returns whether more may come."""
        return self._channel is not None

    @property
    def channel(self) -> int:
        """Descriptor of the channel."""
        assert self._channel is not None, "this link is closed"
        return self._channel.fileno()

    @property
    def is_connecting(self) -> bool:
        """Returns whether the channel is to be polled until it is writable."""
        return bool(self._token)

    def arrived(self) -> list[Arrived]:
        """Returns the messages that have arrived whole: headers, and where payloads lie.

        Closes the channel if the sender has, or if it sends what is no message: that is an empty header.
        """
        found: list[Arrived] = []
        if self._channel is None or (self._token and not self._greet()):
            return found
        left = _READ_BYTES
        try:
            while left > 0:
                n = self._channel.recv_into(self._want[self._has :])
                if not n:
                    raise ConnectionError("the sender has closed it")
                left -= n
                self._has += n
                if self._has == self._want.nbytes:
                    found += self._take()
        except BlockingIOError:
            pass  # all that has come is read
        except OSError:
            self._close_channel()
        except (BrokenSeal, MalformedFrames):
            found.append((b"", None))
            self._close_channel()
        self._choose_wake_bytes()
        # Only now: those of one turn are no sign that earlier messages are missing.
        self.undelivered_bytes += sum(landed.view.nbytes for _, landed in found if landed is not None)
        return found

    def _choose_wake_bytes(self) -> None:
        """Makes the channel readable when much of a large payload is there: a turn of a poll takes time."""
        if self._channel is None:
            return
        missing = 0
        if self._start is not None:
            _, n_bytes, is_clear = self._start
            missing = n_bytes - self._at - (self._has if is_clear else 0)
        wanted = _WAKE_BYTES if missing >= 2 * _WAKE_BYTES else 1
        if wanted != self._wake_bytes:
            self._wake_bytes = wanted
            self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)

    def _greet(self) -> bool:
        """Sends the token once the channel is connected."""
        assert self._channel is not None
        try:
            if self._channel.send(self._token) != len(self._token):
                raise ConnectionError
        except BlockingIOError:
            return False
        except OSError:
            self._close_channel()
            return False
        self._token = b""
        return True

    def _take(self) -> list[Arrived]:
        """Takes what was read, and decides what is read next; returns a message that is whole."""
        if self._start is not None:
            return self._take_payload(self._start)
        if self._is_length:
            n = int.from_bytes(self._want, "little")
            if not TAG_BYTES < n <= _MAX_HEADER_BYTES:
                raise MalformedFrames(f"a header of {n} bytes; at most {_MAX_HEADER_BYTES} are accepted")
            self._is_length = False
            self._read(memoryview(bytearray(n)))
            return []
        header = bytearray(self._want.nbytes - TAG_BYTES)
        self._seal.open(self._want, memoryview(header))
        self._is_length = True
        self._read(memoryview(bytearray(LENGTH_BYTES)))
        return self._begin(bytes(header))

    def _begin(self, header: bytes) -> list[Arrived]:
        """Prepares the memory of a payload; a message without one is whole."""
        start = decode_envelope(header)
        if not isinstance(start, MessageStart):
            raise MalformedFrames("not a message on the stream link")
        if start.place is None:
            return [(header, None)]
        n_bytes = start.n_bytes or 0
        if not INLINE_BYTES < n_bytes <= self._max_payload or start.place not in (SEALED, CLEAR):
            raise MalformedFrames(f"a payload of {n_bytes} bytes; {self._max_payload} are accepted at most")
        if self.undelivered_bytes + n_bytes > 2 * self._max_payload:
            raise MalformedFrames("payloads ahead of messages that do not come")
        self._start, self._at = (header, n_bytes, start.place == CLEAR), 0
        self._landing = self.pool.take(n_bytes)
        self._read_record()
        return []

    def _read_record(self) -> None:
        assert self._start is not None and self._landing is not None
        _, n_bytes, is_clear = self._start
        if is_clear:  # one record, of which any number of bytes is read at once
            self._read(self._landing.data[:n_bytes])
        else:
            self._read(self._record[: min(RECORD_BYTES, n_bytes - self._at) + TAG_BYTES])

    def _take_payload(self, start: tuple[bytes, int, bool]) -> list[Arrived]:
        header, n_bytes, is_clear = start
        assert self._landing is not None
        n = self._want.nbytes if is_clear else self._want.nbytes - TAG_BYTES
        if not is_clear:
            self._seal.open(self._want, self._landing.data[self._at : self._at + n])
        self._at += n
        if self._at < n_bytes:
            self._read_record()
            return []
        buffer, self._landing, self._start = self._landing, None, None
        self._read(memoryview(bytearray(LENGTH_BYTES)))
        return [(header, Landed(buffer, buffer.data[:n_bytes].toreadonly(), is_clear, self))]

    def _read(self, into: memoryview) -> None:
        self._want, self._has = into, 0

    def close(self) -> None:
        """Closes the link, which the sender notices."""
        self._close_channel()
        self._landing = None

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._on_close(self._channel.fileno())
            self._channel.close()
            self._channel = None
