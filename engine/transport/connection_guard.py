"""Limits on what accepted connections of an inbox may cost.

libzmq delivers a multi-frame message only when its last frame has arrived, without a bound on what comes
before, so a member could fill the memory with an endless message. It also accepts as many silent connections
as there are descriptors, and reads a frame of a whole chunk before a handshake is over. All of it is measured
from outside: by the bytes that the kernel has received and sent on a connection, and by the number of
connections without a handshake; how fast they come is bounded by `Admission`. A connection that is closed
here without reason reconnects and loses nothing.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import zmq

from partita.engine.protocol.messages import Peer
from partita.engine.transport.admission import Admission, Budget
from partita.engine.transport.sockets import EVENT, tcp_view

MAX_HANDSHAKING: Final = 256  # connections that may be within a handshake at once
MAX_HANDSHAKE_BYTES: Final = 1 << 13
"""Bytes that a connection may send before its handshake is over. A correct one sends less than a tenth."""

MAX_UNDELIVERED_BYTES: Final = 24 << 20
"""Bytes that a connection may hold beyond the kernel's own buffer: more than a full queue of frames."""

CHECK_S: Final = 0.025  # interval between checks
_EXAMINE_S: Final = 0.001  # per connection, between two reads of its byte count: 0.2% of a core
_HANDSHAKE_S: Final = 1.0  # limit of a handshake, see `SocketFactory`
_NAMED_S: Final = 1.0  # after a key was admitted, messages tell whose connection is whose
_BYTES_SENT: Final = 120  # offsets in the kernel's `tcp_info`: what the peer has acknowledged, ...
_BYTES_RECEIVED: Final = 128  # ... and what it has sent
_TCP_INFO_BYTES: Final = 136
_PROVED_BYTES: Final = 260
"""libzmq sends 64 bytes of greeting and 170 of WELCOME to anybody (12 more to a refused one), and READY, of
more than 50, only to a listed key."""


@dataclass(slots=True)
class _Connection:
    opened_at: float
    budget: Budget = field(default_factory=Budget)
    received: int = 0
    held_from: int | None = None  # bytes received when it became suspect; None: it is not
    is_delivering: bool = False  # since it is suspect
    key: str = ""  # of its sender, as far as its messages were looked at


@dataclass(eq=False)
class ConnectionGuard:
    """Accepted connections of one inbox, by descriptor. Used by the mailbox's thread only.

    `events` is from `SocketFactory.events`, and `listening` the descriptor of the listening socket. `on_cut`
    is called for each connection that is closed, with the key of a member ("": not known). While it
    `watches_messages`, `delivered` must be called for every one. `check` is to be called from `next_check` on
    (seconds, `time.monotonic`). `on_event` receives the kind and value of every event.
    """

    events: zmq.Socket[bytes]
    port: int
    on_cut: Callable[[str], None]
    on_event: Callable[[int, int], None] = lambda kind, value: None
    listening: int = -1

    def __post_init__(self) -> None:
        self._open: dict[int, _Connection] = {}
        self._handshaking: dict[int, _Connection] = {}  # those of them without a proved key, oldest first
        self._admission = Admission(self.listening)
        self._suspects: set[int] = set()
        self._named_until = float("-inf")
        self.next_check = self._next_examination = float("-inf")

    @property
    def watches_messages(self) -> bool:
        """Returns whether `delivered` has to be called for messages at present."""
        return bool(self._suspects) or time.monotonic() < self._named_until

    def admitted(self) -> None:
        """Looks for a while whose messages come on which connections: a key has just been admitted."""
        self._named_until = time.monotonic() + _NAMED_S

    def expect(self, peers: Iterable[Peer]) -> None:
        """Does not let strangers at other addresses keep these peers out."""
        self._admission.expect(peers)

    def delivered(self, descriptor: int, key: str) -> None:
        """Records a message with this key, received on this descriptor."""
        if descriptor not in self._open:
            self.read_events(time.monotonic())
        connection = self._open.get(descriptor)
        if connection is not None:
            connection.is_delivering, connection.key = True, key

    def check(self, now: float) -> None:
        """Updates the connections and closes those beyond a limit (`now` in seconds, `time.monotonic`)."""
        self.next_check = now + CHECK_S
        self.read_events(now)
        if now >= self._next_examination:
            self._next_examination = now + _EXAMINE_S * len(self._open)
            for descriptor, connection in list(self._open.items()):
                if descriptor not in self._handshaking:
                    self._examine(descriptor, connection)
        for descriptor, connection in list(self._handshaking.items()):
            self._examine_handshake(descriptor, connection, now)
        for descriptor in list(self._handshaking)[: max(0, len(self._handshaking) - MAX_HANDSHAKING)]:
            self.cut(descriptor)
        self._admission.update(now)

    def read_events(self, now: float) -> None:
        """Reads what libzmq has reported (`now` as in `check`)."""
        while True:
            try:
                frames = self.events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            kind, descriptor = EVENT.unpack(frames[0])
            self.on_event(kind, descriptor)
            if kind == zmq.EVENT_ACCEPTED:
                self._accept(descriptor, now)
            elif kind == zmq.EVENT_DISCONNECTED:
                self._forget(descriptor)

    def _accept(self, descriptor: int, now: float) -> None:
        self._forget(descriptor)  # the end of an earlier one was reported too late, or is to come
        budget = self._admission.budget_of(descriptor)
        budget.accept()
        self._open[descriptor] = self._handshaking[descriptor] = _Connection(now, budget)

    def _examine_handshake(self, descriptor: int, connection: _Connection, now: float) -> None:
        found = self._counts(descriptor)
        if found is None:
            self._forget(descriptor)
        elif found[1] > _PROVED_BYTES or (not found[1] and now - connection.opened_at > _HANDSHAKE_S):
            del self._handshaking[descriptor]
            self._admission.prove(descriptor, connection.budget)
        elif found[0] > MAX_HANDSHAKE_BYTES:
            self.cut(descriptor)

    def _examine(self, descriptor: int, connection: _Connection) -> None:
        found = self._counts(descriptor)
        if found is None:
            self._forget(descriptor)
            return
        received, _, buffer_bytes = found
        before, connection.received = connection.received, received
        if connection.held_from is None:
            if received - before > MAX_UNDELIVERED_BYTES // 4:
                # What came before may have been delivered: nobody has looked at its messages.
                connection.held_from, connection.is_delivering = received, False
                self._suspects.add(descriptor)
        elif connection.is_delivering:
            connection.held_from, connection.is_delivering = received, False
            if received - before <= MAX_UNDELIVERED_BYTES // 4:
                connection.held_from = None
                self._suspects.discard(descriptor)
        elif received - connection.held_from > MAX_UNDELIVERED_BYTES + buffer_bytes:
            self.cut(descriptor)

    def _forget(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        self._handshaking.pop(descriptor, None)
        self._suspects.discard(descriptor)

    def _counts(self, descriptor: int) -> tuple[int, int, int] | None:
        """Returns the bytes that came and went on a connection, and its kernel buffer size; None if it has
        ended.
        """
        try:
            with tcp_view(descriptor) as view:
                info = view.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                buffer_bytes = view.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        except OSError:
            return None
        if len(info) < _TCP_INFO_BYTES:  # a kernel that does not count
            return 0, 0, buffer_bytes
        sent = int.from_bytes(info[_BYTES_SENT:_BYTES_RECEIVED], "little")
        return int.from_bytes(info[_BYTES_RECEIVED:_TCP_INFO_BYTES], "little"), sent, buffer_bytes

    def cut(self, descriptor: int) -> None:
        """Shuts a connection down as its peer could; libzmq then closes the descriptor."""
        connection = self._open.get(descriptor)
        self._forget(descriptor)
        with contextlib.suppress(OSError, IndexError), tcp_view(descriptor) as view:
            if view.getsockname()[1] == self.port:  # it was not closed and reused meanwhile
                view.shutdown(socket.SHUT_RDWR)
                self.on_cut("" if connection is None else connection.key)
