"""The connecting side of a pool: a connection to a door, and why it does not come about.

Messages are sent while there is a connection, and lost otherwise: who sends repeats what matters.
"""

from __future__ import annotations

import struct
import time
from enum import Enum
from typing import Final, Self

import zmq

from partita.engine.protocol.messages import Peer
from partita.engine.transport.addresses import unreachable
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.sockets import SocketFactory

_WATCHED: Final = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_EVENT: Final = struct.Struct("=HI")
_FAILED: Final = (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
_AGAIN_S: Final = 0.25  # before a refused key is tried again
_SURE: Final = 3  # failed handshakes in a row that are no chance: a door that is being closed fails one


class Trouble(Enum):
    """Why there is no connection."""

    UNREACHABLE = "nothing answers at the address"
    OTHER_KEY = "the door has another key than the one that was given"
    REFUSED = "the door does not know the key of who connects"


class Visit:
    """A connection to a door, which is tried again and again. Belongs to one thread.

    Attributes:
        peer: the door.
        trouble: why there is no connection; None while there is one, or nothing is known.
    """

    def __init__(self, keys: KeyPair, peer: Peer) -> None:
        """Begins to connect.

        Args:
            keys: pair of who connects.
            peer: name, endpoint and public key of the door.

        Raises:
            ValueError: the endpoint or the key cannot be one.
        """
        self.peer: Final = peer
        self.trouble: Trouble | None = None
        self._failures = 0
        self._again_at = float("inf")
        self._sockets = SocketFactory(keys)
        try:
            self._open()
        except BaseException:
            self._sockets.close()
            raise

    @property
    def sockets(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """The sockets to poll for: what `receive` reads. They change when `receive` returns."""
        return self._visit, self._events

    def send(self, data: bytes) -> bool:
        """Sends a message, if there is a connection that takes it; says whether there was."""
        try:
            self._visit.send(data, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> list[bytes]:
        """Returns the answers that have arrived, without waiting, and looks after the connection."""
        self._read_events()
        if time.monotonic() >= self._again_at:
            self._visit.close(linger=0)
            self._events.close(linger=0)
            self._open()
        found: list[bytes] = []
        while True:
            try:
                frames = self._visit.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return found
            if len(frames) == 1:
                found.append(frames[0])

    def reason(self) -> str | None:
        """Says in a few words why nothing answers at the address; None if something listens there.

        Takes up to `addresses.REACH_S` seconds.
        """
        return unreachable(self.peer.endpoint)

    def close(self) -> None:
        """Ends the connection and drops what waits."""
        self._sockets.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        self._again_at = float("inf")
        self._visit, self._events = self._sockets.visit(self.peer, _WATCHED)

    def _read_events(self) -> None:
        while True:
            try:
                frames = self._events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            kind, _ = _EVENT.unpack(frames[0])
            if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.trouble, self._failures = None, 0
            elif kind == zmq.EVENT_CLOSED:
                self.trouble = Trouble.UNREACHABLE
            elif kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self.trouble, self._again_at = Trouble.REFUSED, time.monotonic() + _AGAIN_S
            elif kind in _FAILED:
                self._failures += 1
                if self._failures >= _SURE:
                    self.trouble = Trouble.OTHER_KEY
