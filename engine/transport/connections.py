"""Watches the connections that an inbox has accepted, and cuts those that cost too much.

libzmq gives out a message of several frames only when its last frame is there, and has no bound for what
comes before: a member could fill the memory with a message that never ends. And it takes as many connections
as there are descriptors, of people who say nothing. Both are seen from outside: by the bytes that the kernel
has received on a connection without a message coming out of it, and by the number of connections younger than
a handshake may take. A connection that is cut without reason is opened anew, and loses nothing.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Final

import zmq

from partita.engine.transport.sockets import tcp_view

MOST_YOUNG: Final = 256
"""Connections that may be in the time of a handshake together."""

MOST_UNDELIVERED: Final = 24 << 20
"""Bytes that a connection may hold beyond the kernel's own buffer: more than a full queue of frames."""

LOOK_S: Final = 0.025
"""Time between two looks at which connections there are."""

_LOOK_EACH_S: Final = 0.001  # between two looks at what has come on each, times their number: 0.2% of a core
_YOUNG_S: Final = 1.0  # what a handshake may take, see `SocketFactory`
_EVENT: Final = struct.Struct("=HI")
_BYTES_RECEIVED: Final = 128  # where it stands in the kernel's `tcp_info`
_TCP_INFO_BYTES: Final = 136


class _Connection:
    __slots__ = ("held_from", "is_delivering", "opened_at", "received")

    def __init__(self, now: float) -> None:
        self.opened_at = now
        self.received = 0
        self.held_from: int | None = None  # bytes received when it became suspect; None: it is not
        self.is_delivering = False  # since it is suspect


class Connections:
    """The accepted connections of one inbox, by their descriptors. Belongs to the thread of the mailbox.

    Attributes:
        suspects: whether `delivered` is to be called for every message that comes out of the inbox.
    """

    def __init__(self, events: zmq.Socket[bytes], *, port: int, on_cut: Callable[[], None]) -> None:
        """No connection yet.

        Args:
            events: from `SocketFactory.events`.
            port: on which the inbox listens.
            on_cut: called for each connection that is cut.
        """
        self._events, self._port, self._on_cut = events, port, on_cut
        self._open: dict[int, _Connection] = {}
        self.suspects: set[int] = set()
        self._next_look = self._next_count = float("-inf")

    def delivered(self, descriptor: int) -> None:
        """A message has come out that was received on this descriptor."""
        connection = self._open.get(descriptor)
        if connection is not None:
            connection.is_delivering = True

    def look_when_due(self, now: float) -> None:
        """Notes what was opened and closed, and cuts what costs too much (seconds, `time.monotonic`)."""
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        self._hear(now)
        if now >= self._next_count:
            self._next_count = now + _LOOK_EACH_S * len(self._open)
            for descriptor, connection in list(self._open.items()):
                self._examine(descriptor, connection)
        young = [d for d, c in self._open.items() if now - c.opened_at < _YOUNG_S]
        for descriptor in young[: max(0, len(young) - MOST_YOUNG)]:
            self._cut(descriptor)

    def _hear(self, now: float) -> None:
        while True:
            try:
                frames = self._events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            kind, descriptor = _EVENT.unpack(frames[0])
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
            if received - before > MOST_UNDELIVERED // 4:
                connection.held_from, connection.is_delivering = before, False
                self.suspects.add(descriptor)
        elif connection.is_delivering:
            connection.held_from, connection.is_delivering = received, False
            if received - before <= MOST_UNDELIVERED // 4:
                connection.held_from = None
                self.suspects.discard(descriptor)
        elif received - connection.held_from > MOST_UNDELIVERED + buffer_bytes:
            self._cut(descriptor)

    def _forget(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        self.suspects.discard(descriptor)

    def _received(self, descriptor: int) -> tuple[int, int] | None:
        """Bytes received on a connection, and the size of the kernel's buffer; None where it has ended."""
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
        """Ends a connection; libzmq sees that as if the other side had, and closes the descriptor."""
        self._forget(descriptor)
        with contextlib.suppress(OSError, IndexError), tcp_view(descriptor) as view:
            if view.getsockname()[1] == self._port:  # it was not closed and used again meanwhile
                view.shutdown(socket.SHUT_RDWR)
                self._on_cut()
