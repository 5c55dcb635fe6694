"""Answers libzmq's question whether a key may get in (ZAP, RFC 27), inside the mailbox's own loop.

pyzmq's authenticator lets NULL clients pass by default and wants a thread or an event loop; here there is
one rule (CURVE, our domain, a listed key) and no thread. It fails closed: unanswered, libzmq lets nobody
in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import zmq
from zmq.utils import z85

from partita.engine.transport.sockets import ZAP_DOMAIN

_VERSION = b"1.0"
_MOST_AT_ONCE = 64  # a crowd of strangers must not keep a host from its messages


class Authenticator:
    """Lets in whoever has a listed key, and names each connection by its key.

    Args:
        socket: from `SocketFactory.authenticator`.
        is_listed: says whether a public key (Z85 text) may get in.
        on_refusal: called once for every refused handshake.
    """

    def __init__(
        self, socket: zmq.Socket[bytes], *, is_listed: Callable[[str], bool], on_refusal: Callable[[], None]
    ) -> None:
        self._socket = socket
        self._is_listed = is_listed
        self._on_refusal = on_refusal

    def serve(self) -> None:
        """Answers the handshakes that are waiting, without waiting for any."""
        for _ in range(_MOST_AT_ONCE):
            try:
                route, *request = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            reply = answer(request, is_listed=self._is_listed)
            if reply is None:
                continue
            if reply[3] != b"200":
                self._on_refusal()
            self._socket.send_multipart([route, *reply], zmq.NOBLOCK)


def answer(request: Sequence[bytes], *, is_listed: Callable[[str], bool]) -> list[bytes] | None:
    """The reply to one ZAP request, or None where there is nobody to answer. Never raises because of the
    request.

    Args:
        request: an empty frame, then version, request id, domain, address, identity, mechanism and
            credentials.
        is_listed: says whether a public key (Z85 text) may get in.
    """
    if len(request) < 3 or request[0] != b"" or request[1] != _VERSION:
        return None
    request_id = request[2]
    user = _user(request, is_listed)
    if user is None:
        return [b"", _VERSION, request_id, b"400", b"refused", b"", b""]
    return [b"", _VERSION, request_id, b"200", b"OK", user.encode("ascii"), b""]


def _user(request: Sequence[bytes], is_listed: Callable[[str], bool]) -> str | None:
    if len(request) != 8:
        return None
    domain, mechanism, key = request[3], request[6], request[7]
    if domain != ZAP_DOMAIN or mechanism != b"CURVE" or len(key) != 32:
        return None
    user: str = z85.encode(key).decode("ascii")
    return user if is_listed(user) else None
