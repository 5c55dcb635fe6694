"""Answers libzmq's question whether a key may get in (ZAP, RFC 27), inside the mailbox's own loop.

pyzmq's authenticator lets NULL clients pass by default and wants a thread or an event loop; here there is one
rule (CURVE, our domain, a listed key) and no thread. It fails closed: unanswered, libzmq lets nobody in.

There is no answer that refuses. A libzmq client that is refused (400) gives up for ever, but hosts learn of
one another in any order, and who is not listed yet must be able to wait. So its handshake is held: it goes
on as soon as the key is listed, and otherwise ends with libzmq's time limit of one second, after which the
client tries again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import zmq
from zmq.utils import z85

from partita.engine.transport.sockets import ZAP_DOMAIN

_VERSION = b"1.0"
_MOST_AT_ONCE = 64  # a crowd of strangers must not keep a host from its messages
_MOST_HELD = 256  # the oldest makes room, and tries again


class Authenticator:
    """Lets in whoever has a listed key, and names each connection by its key.

    Args:
        socket: from `SocketFactory.authenticator`.
        is_listed: says whether a public key (Z85 text) may get in.
        on_stranger: called for every handshake of somebody who may not.
    """

    def __init__(
        self, socket: zmq.Socket[bytes], *, is_listed: Callable[[str], bool], on_stranger: Callable[[], None]
    ) -> None:
        self._socket = socket
        self._is_listed = is_listed
        self._on_stranger = on_stranger
        self._held: deque[tuple[bytes, bytes, str]] = deque(maxlen=_MOST_HELD)

    def serve(self) -> None:
        """Answers the handshakes that are waiting, without waiting for any."""
        for _ in range(_MOST_AT_ONCE):
            try:
                route, *request = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            asked = asked_for(request)
            if asked is not None and self._is_listed(asked[1]):
                self._let_in(route, *asked)
                continue
            self._on_stranger()
            if asked is not None:
                self._held.append((route, *asked))

    def list_changed(self) -> None:
        """Lets in those who were held and are listed by now."""
        held, self._held = self._held, deque(maxlen=_MOST_HELD)
        for route, request_id, key in held:
            if self._is_listed(key):
                self._let_in(route, request_id, key)
            else:
                self._held.append((route, request_id, key))

    def _let_in(self, route: bytes, request_id: bytes, key: str) -> None:
        # A ROUTER drops what is for a connection that has ended meanwhile: that one asks again.
        self._socket.send_multipart([route, *admission(request_id, key)], zmq.NOBLOCK)


def asked_for(request: Sequence[bytes]) -> tuple[bytes, str] | None:
    """The id of a ZAP request and the public key (Z85 text) that asks, or None if this is not a request by
    CURVE in our domain. Never raises because of the request.

    Args:
        request: an empty frame, version, request id, domain, address, identity, mechanism and credentials.
    """
    if len(request) != 8:
        return None
    empty, version, request_id, domain, _, _, mechanism, key = request
    if (empty, version, domain, mechanism) != (b"", _VERSION, ZAP_DOMAIN, b"CURVE") or len(key) != 32:
        return None
    text: str = z85.encode(key).decode("ascii")
    return request_id, text


def admission(request_id: bytes, key: str) -> list[bytes]:
    """The ZAP reply that lets a key in; libzmq then puts it on every frame of its connection (`User-Id`)."""
    return [b"", _VERSION, request_id, b"200", b"OK", key.encode("ascii"), b""]
