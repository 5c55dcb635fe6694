from __future__ import annotations

from typing import cast

import zmq
from zmq.utils import z85

from partita.engine.transport.authenticator import Authenticator
from partita.engine.transport.sockets import ZAP_DOMAIN

ONE, TWO = bytes(32), b"\x01" * 32


class FakeSocket:
    def __init__(self, *requests: list[bytes]) -> None:
        self.requests = list(requests)
        self.replies: list[list[bytes]] = []

    def recv_multipart(self, flags: int) -> list[bytes]:
        if not self.requests:
            raise zmq.Again
        return self.requests.pop(0)

    def send_multipart(self, frames: list[bytes], flags: int) -> None:
        self.replies.append(frames)


def request(route: bytes, key: bytes) -> list[bytes]:
    return [route, b"", b"1.0", b"id of " + route, ZAP_DOMAIN, b"127.0.0.1", b"", b"CURVE", key]


def text(key: bytes) -> str:
    return str(z85.encode(key).decode("ascii"))


def test_a_handshake_is_held_until_its_key_is_listed() -> None:
    socket = FakeSocket(request(b"a", ONE), request(b"b", TWO), [b"c", b"nonsense"])
    listed: set[str] = {text(TWO)}
    strangers: list[None] = []
    authenticator = Authenticator(
        cast("zmq.Socket[bytes]", socket),
        is_authorised=listed.__contains__,
        on_unknown_key=lambda: strangers.append(None),
    )
    authenticator.serve()
    assert [reply[0] for reply in socket.replies] == [b"b"]
    assert len(strangers) == 2
    authenticator.admit_held()
    assert len(socket.replies) == 1
    listed.add(text(ONE))
    authenticator.admit_held()
    authenticator.admit_held()
    assert socket.replies[1:] == [[b"a", b"", b"1.0", b"id of a", b"200", b"OK", text(ONE).encode(), b""]]


def test_unknown_handshakes_are_bounded() -> None:
    crowd = [request(str(at).encode(), ONE) for at in range(2000)]
    socket = FakeSocket(*crowd)
    authenticator = Authenticator(
        cast("zmq.Socket[bytes]", socket), is_authorised=lambda key: False, on_unknown_key=lambda: None
    )
    while socket.requests:
        before = len(socket.requests)
        authenticator.serve()
        assert before - len(socket.requests) <= 64
    assert socket.replies == []
    assert len(authenticator._held) == 256
