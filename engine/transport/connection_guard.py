"""Limits on what accepted connections of an inbox may cost.

libzmq delivers a multi-frame message only when its last frame has arrived, without a bound on what comes
before, so a member could fill the memory with an endless message. It also accepts as many silent connections
as there are descriptors. Both are measured from outside: by the bytes that the kernel received on a
connection since its last message, and by the number of connections younger than the handshake limit. A
connection that is closed here without reason reconnects and loses nothing.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import zmq

from partita.engine.transport.sockets import tcp_view

MAX_HANDSHAKING: Final = 256  # connections that may be within the time of a handshake at once
MAX_UNDELIVERED_BYTES: Final = 24 << 20
"""Bytes that a connection may hold beyond the kernel's own buffer: more than a full queue of frames."""

CHECK_S: Final = 0.025  # interval between checks
_EXAMINE_S: Final = 0.001  # per connection, between two reads of its byte count: 0.2% of a core
_YOUNG_S: Final = 1.0  # limit of a handshake, see `SocketFactory`
_EVENT: Final = struct.Struct("=HI")
_BYTES_RECEIVED: Final = 128  # offset in the kernel's `tcp_info`
_TCP_INFO_BYTES: Final = 136


@dataclass(slots=True)
class _Connection:
    opened_at: float
    received: int = 0
    held_from: int | None = None  # bytes received when it became suspect; None: it is not
    is_delivering: bool = False  # since it is suspect


@dataclass(eq=False)
class ConnectionGuard:
    """Accepted connections of one inbox, by descriptor. Used by the mailbox's thread only.

    `events` is from `SocketFactory.events`; `on_cut` is called for each connection that is closed. While
    there are `suspects` (descriptors), `delivered` must be called for every message. `check` is to be called
    from `next_check` on (seconds, `time.monotonic`). `on_event` receives the kind and value of every event.
    """

    events: zmq.Socket[bytes]
    port: int
    on_cut: Callable[[], None]
    on_event: Callable[[int, int], None] = lambda kind, value: None

    def __post_init__(self) -> None:
        self._open: dict[int, _Connection] = {}
        self.suspects: set[int] = set()
        self.next_check = self._next_examination = float("-inf")

    def delivered(self, descriptor: int) -> None:
        """Records a message received on this descriptor."""
        connection = self._open.get(descriptor)
        if connection is not None:
            connection.is_delivering = True

    def check(self, now: float) -> None:
        """Updates the connections and closes those beyond a limit (`now` in seconds, `time.monotonic`)."""
        self.next_check = now + CHECK_S
        self.read_events(now)
        if now >= self._next_examination:
            self._next_examination = now + _EXAMINE_S * len(self._open)
            for descriptor, connection in list(self._open.items()):
                self._examine(descriptor, connection)
        young = [d for d, c in self._open.items() if now - c.opened_at < _YOUNG_S]
        for descriptor in young[: max(0, len(young) - MAX_HANDSHAKING)]:
            self._cut(descriptor)

    def read_events(self, now: float) -> None:
        """Reads what libzmq has reported (`now` as in `check`)."""
        while True:
            try:
                frames = self.events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            kind, descriptor = _EVENT.unpack(frames[0])
            self.on_event(kind, descriptor)
            if kind == zmq.EVENT_ACCEPTED:
                self._open[descriptor] = _Connection(now)
            elif kind == zmq.EVENT_DISCONNECTED:
                self._forget(descriptor)

    def _examine(self, descriptor: int, connection: _Connection) -> None:
        found = self._received(descriptor)
        if found is None:
            self._forget(descriptor)
            return
        received, buffer_bytes = found
        before, connection.received = connection.received, received
        if connection.held_from is None:
            if received - before > MAX_UNDELIVERED_BYTES // 4:
                connection.held_from, connection.is_delivering = before, False
                self.suspects.add(descriptor)
        elif connection.is_delivering:
            connection.held_from, connection.is_delivering = received, False
            if received - before <= MAX_UNDELIVERED_BYTES // 4:
                connection.held_from = None
                self.suspects.discard(descriptor)
        elif received - connection.held_from > MAX_UNDELIVERED_BYTES + buffer_bytes:
            self._cut(descriptor)

    def _forget(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        self.suspects.discard(descriptor)

    def _received(self, descriptor: int) -> tuple[int, int] | None:
        """Returns a connection's received bytes and its kernel buffer size; None if it has ended."""
        try:
            with tcp_view(descriptor) as view:
                info = view.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                buffer_bytes = view.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        except OSError:
            return None
        if len(info) < _TCP_INFO_BYTES:  # a kernel that does not count
            return 0, buffer_bytes
        return int.from_bytes(info[_BYTES_RECEIVED:_TCP_INFO_BYTES], "little"), buffer_bytes

    def _cut(self, descriptor: int) -> None:
        """Shuts a connection down as its peer could; libzmq then closes the descriptor."""
        self._forget(descriptor)
        with contextlib.suppress(OSError, IndexError), tcp_view(descriptor) as view:
            if view.getsockname()[1] == self.port:  # it was not closed and reused meanwhile
                view.shutdown(socket.SHUT_RDWR)
                self.on_cut()
