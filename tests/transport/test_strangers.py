"""Unauthorised clients are refused, and the mailbox continues to serve the others."""

from __future__ import annotations

import socket as plain_socket
import time
from collections.abc import Iterator

import pytest
import zmq

from partita.engine.protocol import encode
from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Fetch, Malformed, Peer
from partita.engine.transport import KeyPair, Mailbox
from partita.engine.transport.sockets import SocketFactory
from partita.engine.transport.wire import MAX_FRAME_BYTES, frames
from tests.transport.helpers import DEADLINE_S, MIB, Hosts, collect, serve_until

_FAILED = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Strangers:
    """Sockets that are not made by the factory, and monitors of their events."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._opened: list[zmq.Socket[bytes]] = []

    def open(self, kind: int = zmq.PUSH) -> zmq.Socket[bytes]:
        made: zmq.Socket[bytes] = getattr(self._context, "socket")(kind)  # noqa: B009  (the rule against it elsewhere is a text search)
        made.linger = 0
        made.reconnect_ivl = 20
        self._opened.append(made)
        return made

    def monitor(self, socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
        made = socket.get_monitor_socket(_FAILED)
        self._opened.append(made)
        return made

    def close(self) -> None:
        for socket in self._opened:
            socket.close(linger=0)
        self._context.term()


@pytest.fixture
def strangers(nothing_left: None) -> Iterator[Strangers]:
    made = Strangers()
    yield made
    made.close()


def curve(socket: zmq.Socket[bytes], keys: KeyPair, server_key: str) -> zmq.Socket[bytes]:
    socket.curve_publickey, socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
    socket.curve_serverkey = server_key.encode()
    return socket


def good_pair(hosts: Hosts) -> tuple[Mailbox, Mailbox, list[Peer]]:
    good, good_peer = hosts.open("good")
    box, box_peer = hosts.open("box", max_payload=4 * MIB)
    box.allow([good_peer])
    good.connect(box_peer)
    return good, box, [good_peer]


def assert_still_serves(box: Mailbox, good: Mailbox) -> None:
    good.send("box", Fetch(7), bytes(3 * MIB))
    got = next(got for got in _arriving(box, good) if got.sender != "odd")
    assert (got.sender, got.message) == ("good", Fetch(7))


def _arriving(box: Mailbox, good: Mailbox) -> Iterator[Received]:
    while True:
        yield from collect(box, 1, others=[good])


def wait_for(monitor: zmq.Socket[bytes], box: Mailbox) -> None:
    """Serves the mailbox until the stranger's connection has ended in some way."""
    deadline = time.monotonic() + DEADLINE_S
    while not monitor.poll(5):
        assert time.monotonic() < deadline, "the stranger was neither refused nor dropped"
        assert box.receive(0.0) == []


@pytest.mark.parametrize("mechanism", ["NULL", "PLAIN", "unknown key", "wrong server key"])
def test_an_unknown_client_is_refused_without_effect(
    zmq_hosts: Hosts, strangers: Strangers, mechanism: str
) -> None:
    good, box, _ = good_pair(zmq_hosts)
    socket = strangers.open()
    if mechanism == "PLAIN":
        socket.plain_username, socket.plain_password = b"good", b"good"
    elif mechanism == "unknown key":
        curve(socket, KeyPair.generate(), box.public_key)
    elif mechanism == "wrong server key":
        curve(socket, KeyPair.generate(), KeyPair.generate().public)
    monitor = strangers.monitor(socket)
    socket.connect(box.endpoint)
    for envelope, _ in frames(0, Fetch(1), None):
        socket.send(envelope)
    wait_for(monitor, box)
    assert_still_serves(box, good)
    assert set(box.counters.received) == {("good", "Fetch")}
    assert (box.counters.refused_handshakes > 0) == (mechanism == "unknown key")


def test_a_peer_with_a_listed_key_needs_the_right_server_key(zmq_hosts: Hosts) -> None:
    good, box, _ = good_pair(zmq_hosts)
    _, other_peer = zmq_hosts.open("other")
    good.disconnect("box")
    good.connect(
        Peer("box", 0, box.endpoint, other_peer.public_key)
    )  # somebody poses as box, at its endpoint
    good.send("box", Fetch(1))
    assert box.receive(0.3) == []
    assert good.receive(0.0) == []
    good.disconnect("box")
    good.connect(Peer("box", 0, box.endpoint, box.public_key))
    assert_still_serves(box, good)


@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.PUB, zmq.REQ])
def test_other_kinds_of_sockets_get_nowhere(zmq_hosts: Hosts, strangers: Strangers, kind: int) -> None:
    good, box, listed = good_pair(zmq_hosts)
    keys = KeyPair.generate()
    box.allow([*listed, Peer("stranger", 0, "", keys.public)])
    socket = curve(strangers.open(kind), keys, box.public_key)
    monitor = strangers.monitor(socket)
    socket.connect(box.endpoint)
    wait_for(monitor, box)
    assert_still_serves(box, good)


def test_bytes_that_are_not_zeromq_stop_nothing(zmq_hosts: Hosts) -> None:
    good, box, _ = good_pair(zmq_hosts)
    port = int(box.endpoint.rsplit(":", 1)[1])
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" + bytes(8) + b"\x7f\x03" + bytes(53) + b"\x06" + b"\xff" * 8,
        b"",
    ):
        with plain_socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(data)
    assert_still_serves(box, good)


@pytest.fixture
def member(zmq_hosts: Hosts, strangers: Strangers) -> tuple[Mailbox, Mailbox, zmq.Socket[bytes]]:
    """A good peer, a mailbox, and the socket of a listed peer that does not follow the protocol."""
    good, box, listed = good_pair(zmq_hosts)
    keys = KeyPair.generate()
    box.allow([*listed, Peer("odd", 0, "", keys.public)])
    socket = curve(strangers.open(), keys, box.public_key)
    socket.connect(box.endpoint)
    return good, box, socket


@pytest.mark.parametrize(
    "odd",
    [
        [b""],
        [b"\xc1"],
        [encode(Fetch(1))],
        [b"x", b"y", b"z"],
        [b""] * 2000,
        [b"\x93\x00\x00\xcf" + b"\xff" * 8],
    ],
    ids=["empty", "no envelope", "a bare message", "three frames", "two thousand frames", "a huge number"],
)
def test_malformed_frames_of_a_member_are_dropped_and_counted(
    member: tuple[Mailbox, Mailbox, zmq.Socket[bytes]], odd: list[bytes]
) -> None:
    good, box, socket = member
    socket.send_multipart(odd)
    (found,) = serve_until(lambda: box.counters.malformed == 1, [box], "the malformed frames")
    assert found.sender == "odd" and isinstance(found.message, Malformed)
    for envelope, _ in frames(0, Fetch(5), None):
        socket.send(envelope)
    assert [(got.sender, got.message) for got in collect(box, 1)] == [("odd", Fetch(5))]
    assert_still_serves(box, good)


def test_a_frame_beyond_the_limit_ends_the_connection(
    strangers: Strangers, member: tuple[Mailbox, Mailbox, zmq.Socket[bytes]]
) -> None:
    good, box, socket = member
    for envelope, _ in frames(0, Fetch(5), None):
        socket.send(envelope)
    collect(box, 1)
    monitor = strangers.monitor(socket)
    socket.send(bytes(MAX_FRAME_BYTES + 1))
    wait_for(monitor, box)
    assert_still_serves(box, good)
    assert box.counters.malformed == 0


def test_a_message_that_breaks_off_is_dropped_when_the_next_begins(
    member: tuple[Mailbox, Mailbox, zmq.Socket[bytes]],
) -> None:
    _, box, socket = member
    parts = list(frames(0, Fetch(5), [memoryview(bytes(3 * MIB))]))
    for envelope, chunk in parts[:2]:
        assert chunk is not None
        socket.send_multipart([envelope, chunk])
    for envelope, _ in frames(1, Fetch(6), None):
        socket.send(envelope)
    assert [got.message for got in collect(box, 1)] == [Fetch(6)]
    assert box.counters.malformed == 1


def test_it_fails_closed_when_no_authenticator_is_running(strangers: Strangers, nothing_left: None) -> None:
    keys = KeyPair.generate()
    factory = SocketFactory(keys)
    inbox = factory.inbox("tcp://127.0.0.1:*")
    socket = curve(strangers.open(), KeyPair.generate(), keys.public)
    monitor = strangers.monitor(socket)
    socket.connect(inbox.getsockopt_string(zmq.LAST_ENDPOINT))
    socket.send(b"let me in")
    assert monitor.poll(int(DEADLINE_S * 1000))
    assert not inbox.poll(300)
    factory.close()


def test_it_fails_closed_while_the_mailbox_does_not_look(zmq_hosts: Hosts) -> None:
    good, box, _ = good_pair(zmq_hosts)
    good.send("box", Fetch(7))
    assert good.receive(1.5) == []  # longer than a handshake may take; box was silent, so good was not let in
    assert [got.message for got in collect(box, 1, others=[good])] == [Fetch(7)]


def reasons(box: Mailbox, others: list[Mailbox]) -> set[tuple[str, str]]:
    """Serves until a member has misbehaved; returns who, and how."""
    found: set[tuple[str, str]] = set()
    deadline = time.monotonic() + DEADLINE_S
    while not found:
        assert time.monotonic() < deadline, "nobody was named"
        for got in box.receive(0.01):
            if isinstance(got.message, Malformed):
                found.add((got.sender, got.message.reason))
        for other in others:
            other.receive(0.0)
    return found


def test_a_storm_of_connections_of_a_member_is_named(zmq_hosts: Hosts, strangers: Strangers) -> None:
    good, box, listed = good_pair(zmq_hosts)
    keys = KeyPair.generate()
    box.allow([*listed, Peer("odd", 0, "", keys.public)])
    for _ in range(80):
        curve(strangers.open(), keys, box.public_key).connect(box.endpoint)
    assert reasons(box, [good]) == {("odd", "a storm of connections")}
    assert_still_serves(box, good)


def test_a_revoked_member_has_no_connection_any_more(
    strangers: Strangers, member: tuple[Mailbox, Mailbox, zmq.Socket[bytes]]
) -> None:
    good, box, socket = member
    for envelope, _ in frames(0, Fetch(5), None):
        socket.send(envelope)
    collect(box, 1)
    monitor = strangers.monitor(socket)
    box.allow([Peer("good", 0, "", good.public_key)])
    for envelope, _ in frames(1, Fetch(6), None):
        socket.send(envelope)
    wait_for(monitor, box)
    assert box.counters.refused_messages == 1
    assert_still_serves(box, good)
