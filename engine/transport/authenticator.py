"""Authentication of keys (ZAP, RFC 27) inside the mailbox's own loop.

pyzmq's authenticator lets NULL clients pass by default and needs a thread or an event loop. This one has a
single rule (CURVE, our domain, an authorised key) and no thread; without an answer, libzmq admits nobody.

A mailbox refuses nothing explicitly: a libzmq client that is refused (400) gives up for good, but hosts learn
of one another in any order. So the handshake of an unknown key is held until the key is authorised, or until
libzmq's limit of one second ends it and the client tries again. A door refuses an unknown key at once, so
that both sides can say so.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from partita.engine.transport.sockets import ZAP_DOMAIN

_VERSION = b"1.0"
_MAX_SERVED = 64  # per call, so that many unknown clients cannot starve the mailbox
_MAX_CONNECTIONS = 64  # of one key in a burst, ...
_CONNECTIONS_S = 8.0  # ... and per second after it
_MAX_REMEMBERED = 4096
_MAX_HELD = 256  # the oldest is dropped, and tries again


@dataclass(eq=False)
class Authenticator:
    """Admits authorised keys (Z85 text), and tags each connection with its key.

    `on_unknown_key` is called for every handshake with another key. With `on_refused`, such a handshake is
    refused and not held, and `on_refused` is called with the key and the address it came from. With
    `on_storm`, each key is of one process: it is called with one that connects again too often, which is not
    admitted this time. `on_admitted` is called for each that is.
    """

    socket: zmq.Socket[bytes]
    is_authorised: Callable[[str], bool]
    on_unknown_key: Callable[[], None]
    on_refused: Callable[[str, str], None] | None = None
    on_storm: Callable[[str], None] | None = None
    on_admitted: Callable[[], None] = lambda: None
    _held: deque[tuple[bytes, bytes, str]] = field(default_factory=lambda: deque(maxlen=_MAX_HELD))
    _admitted: dict[str, tuple[float, float]] = field(default_factory=dict)  # by key: count, and when

    def serve(self) -> None:
        """Answers the waiting handshakes without blocking."""
        for _ in range(_MAX_SERVED):
            try:
                route, *request = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            asked = parse_request(request)
            if asked is not None and self.is_authorised(asked[1]):
                self._admit(route, *asked)
                continue
            self.on_unknown_key()
            if asked is not None and self.on_refused is not None:
                self.socket.send_multipart([route, *refusal(asked[0])], zmq.NOBLOCK)
                self.on_refused(asked[1], request[4].decode("ascii", "replace"))
            elif asked is not None:
                self._held.append((route, *asked))

    def admit_held(self) -> None:
        """Admits the held handshakes whose keys are authorised by now."""
        held, self._held = self._held, deque(maxlen=_MAX_HELD)
        for route, request_id, key in held:
            if self.is_authorised(key):
                self._admit(route, request_id, key)
            else:
                self._held.append((route, request_id, key))

    def _admit(self, route: bytes, request_id: bytes, key: str) -> None:
        if self.on_storm is not None and self._is_storm(key):
            self.on_storm(key)
            return
        self.on_admitted()
        # A ROUTER drops replies to connections that have ended meanwhile; those clients ask again.
        self.socket.send_multipart([route, *admission(request_id, key)], zmq.NOBLOCK)

    def _is_storm(self, key: str) -> bool:
        """Counts a connection of a key, and returns whether it is one too many."""
        now = time.monotonic()
        count, at = self._admitted.pop(key, (0.0, now))
        count = max(count - _CONNECTIONS_S * (now - at), 0.0) + 1
        self._admitted[key] = min(count, _MAX_CONNECTIONS + 1), now
        if len(self._admitted) > _MAX_REMEMBERED:
            del self._admitted[next(iter(self._admitted))]
        return count > _MAX_CONNECTIONS


def parse_request(request: Sequence[bytes]) -> tuple[bytes, str] | None:
    """Returns the id and the public key (Z85 text) of a ZAP request; None if it is not CURVE in our domain.

    A request has an empty frame, version, request id, domain, address, identity, mechanism and credentials.
    Never raises.
    """
    if len(request) != 8:
        return None
    empty, version, request_id, domain, _, _, mechanism, key = request
    if (empty, version, domain, mechanism) != (b"", _VERSION, ZAP_DOMAIN, b"CURVE") or len(key) != 32:
        return None
    text: str = z85.encode(key).decode("ascii")
    return request_id, text


def admission(request_id: bytes, key: str) -> list[bytes]:
    """Returns the ZAP reply that admits a key, which libzmq adds to every frame (`User-Id`)."""
    return [b"", _VERSION, request_id, b"200", b"OK", key.encode("ascii"), b""]


def refusal(request_id: bytes) -> list[bytes]:
    """Returns the ZAP reply that refuses a key; the client is told, and does not try again."""
    return [b"", _VERSION, request_id, b"400", b"unknown key", b"", b""]
