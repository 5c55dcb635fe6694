"""The listening side of a pool: whoever has an authorised key may ask, and is answered over its connection.

A door differs from a mailbox in what a stranger learns. A mailbox holds the handshake of an unknown key
until it is authorised; a door refuses it at once and reports it, so that a wrong key is named on both sides.
Messages are bytes: this module does not know those of a pool.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

import zmq

from partita.engine.transport.authenticator import Authenticator
from partita.engine.transport.connection_guard import ConnectionGuard
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.sockets import SocketFactory, tcp_view

_WATCHED: Final = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_OTHER_SERVER_KEY: Final = 0x11000001  # ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC: libzmq could not decrypt
_CHECK_S: Final = 0.1  # between two checks of the connections: a door carries little
_MAX_ASKED: Final = 256  # per call
_MAX_REPORTS: Final = 64
_REPEAT_S: Final = 30.0  # seconds before the same stranger is reported again
_UNNAMED_S: Final = 2.0  # after which one is reported even if its address could not be read


@dataclass(frozen=True, slots=True)
class Asked:
    """A message at a door.

    Args:
        route: the connection, for the answer.
        key: the authenticated key of who asks (Z85).
        data: the message.
        connection: see `Door.cut`.
    """

    route: bytes
    key: str
    data: bytes
    connection: int = -1


@dataclass(frozen=True, slots=True)
class Stranger:
    """Somebody who did not get in.

    Args:
        address: where the connection came from; "" where it had gone before that could be read.
        key: its public key; "" where it expected another key at this door.
    """

    address: str
    key: str = ""


class Door:
    """A listening socket for authorised keys. Belongs to one thread; others may call `wake` alone."""

    def __init__(self, keys: KeyPair, endpoint: str, *, is_authorised: Callable[[str], bool]) -> None:
        """Listens.

        Args:
            keys: pair of this door; who asks has to know its public half.
            endpoint: `tcp://HOST:PORT`, or `tcp://HOST:*` for any free port.
            is_authorised: whether a public key (Z85) may ask. Also consulted for each message: a key that is
                revoked is out at once.

        Raises:
            ValueError, EndpointUnavailable, RuntimeError: as `ZmqMailbox`.
        """
        self._is_authorised = is_authorised
        self._sockets = SocketFactory(keys)
        try:
            zap = self._sockets.authenticator()
            self._door = self._sockets.door(endpoint)
            events = self._sockets.events(self._door, _WATCHED)
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except BaseException:
            self._sockets.close()
            raise
        self.public_key: Final = keys.public
        self.endpoint: Final[str] = self._door.getsockopt_string(zmq.LAST_ENDPOINT)
        self._port = int(self.endpoint.rpartition(":")[2])
        self._wake_lock = threading.Lock()
        self._closed = False
        self._handshaking = ""  # address of the newest connection, as far as it could be read
        self._failed_since: float | None = None
        self._strangers: list[Stranger] = []
        self._reported: dict[Stranger, float] = {}
        self._authenticator = Authenticator(
            zap, is_authorised=is_authorised, on_unknown_key=lambda: None, on_refused=self._refused
        )
        self._guard = ConnectionGuard(
            events,
            port=self._port,
            on_cut=lambda key: None,
            on_event=self._event,
            listening=self._sockets.listening,
        )
        self._zap, self._events = zap, events
        self._poller = zmq.Poller()
        self._others: tuple[zmq.Socket[bytes], ...] = ()
        for source in (self._door, zap, events, self._wake_fd):
            self._poller.register(source, zmq.POLLIN)

    def watch(self, others: tuple[zmq.Socket[bytes], ...]) -> None:
        """Lets `receive` return when one of these sockets, and of no earlier ones, has something to read."""
        if others == self._others:
            return
        for source in self._others:
            self._poller.unregister(source)
        for source in others:
            self._poller.register(source, zmq.POLLIN)
        self._others = others

    def receive(self, timeout_s: float) -> list[Asked]:
        """Returns what was asked: at least one message, unless time is up, `wake` was called, or there is
        something to read from a socket that is watched.
        """
        until, found = time.monotonic() + timeout_s, list[Asked]()
        while True:
            now = time.monotonic()
            if now >= self._guard.next_check:
                self._guard.check(now)
            left_s = min(max(until - now, 0.0), _CHECK_S)
            ready = dict(self._poller.poll(math.ceil(left_s * 1000)))
            if self._events in ready:
                self._guard.read_events(time.monotonic())
            if self._zap in ready:
                self._authenticator.serve()
            if self._door in ready:
                self._read(found)
            if self._wake_fd in ready:
                os.eventfd_read(self._wake_fd)
                return found
            if any(source in ready for source in self._others):
                return found
            if found or self._strangers or time.monotonic() >= until:
                return found

    def answer(self, route: bytes, data: bytes) -> None:
        """Sends an answer, which is lost if the connection has ended or takes no more: it is asked again."""
        with contextlib.suppress(zmq.Again, zmq.ZMQError):
            self._door.send_multipart([route, data], zmq.NOBLOCK)

    def cut(self, asked: Asked) -> None:
        """Closes the connection over which this was asked."""
        self._guard.cut(asked.connection)

    def strangers(self) -> list[Stranger]:
        """Returns those who did not get in since the last call; each is returned again after a while only."""
        if self._failed_since is not None and time.monotonic() - self._failed_since > _UNNAMED_S:
            self._report(Stranger(""))
        found, self._strangers = self._strangers, []
        return found

    def wake(self) -> None:
        """Makes `receive` return at once. Safe from every thread."""
        with self._wake_lock:
            if not self._closed:
                os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Closes the socket and every connection."""
        with self._wake_lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._wake_fd)
        self._sockets.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, found: list[Asked]) -> None:
        for _ in range(_MAX_ASKED):
            try:
                frames = self._door.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            key = str(frames[-1].get("User-Id"))
            if self._guard.watches_messages:
                self._guard.delivered(frames[-1].get(zmq.SRCFD), key)
            if not self._is_authorised(key):
                self._guard.cut(frames[-1].get(zmq.SRCFD))
            elif len(frames) == 2:
                found.append(Asked(frames[0].bytes, key, frames[1].bytes, frames[1].get(zmq.SRCFD)))
            else:
                found.append(Asked(frames[0].bytes, key, b"", frames[-1].get(zmq.SRCFD)))

    # Strangers.

    def _refused(self, key: str, address: str) -> None:
        self._report(Stranger(address, key))

    def _event(self, kind: int, value: int) -> None:
        """Finds who expects another key of this door: libzmq ends such a connection without its address."""
        if kind == zmq.EVENT_ACCEPTED:
            self._handshaking = self._address_of(value)
        elif kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == _OTHER_SERVER_KEY:
            if self._handshaking:
                self._report(Stranger(self._handshaking))
            elif self._failed_since is None:
                self._failed_since = time.monotonic()

    def _address_of(self, descriptor: int) -> str:
        try:
            with tcp_view(descriptor) as view:
                same = view.getsockname()[1] == self._port
                return str(view.getpeername()[0]) if same else ""
        except (OSError, IndexError):
            return ""

    def _report(self, stranger: Stranger) -> None:
        self._failed_since = None
        now = time.monotonic()
        if now - self._reported.get(stranger, float("-inf")) < _REPEAT_S:
            return
        if not stranger.address and any(now - at < _REPEAT_S for at in self._reported.values()):
            return  # one of those that are known by their address
        self._reported[stranger] = now
        while len(self._reported) > _MAX_REPORTS:
            del self._reported[next(iter(self._reported))]
        self._strangers.append(stranger)
