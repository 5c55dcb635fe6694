"""Every listening socket: SECURITY.md lists it with its limits, and strangers at it reach nothing."""

from __future__ import annotations

import os
import re
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from partita.engine.protocol import conduct
from partita.engine.transport import (
    KeyPair,
    ZmqMailbox,
    admission,
    authenticator,
    connection_guard,
    rendezvous,
    sockets,
    stream_sender,
)
from partita.engine.transport.door import Door
from partita.engine.transport.rendezvous import Rendezvous
from partita.engine.transport.seal import CAN_SEAL
from partita.engine.transport.sockets import local_socket, stream_connection
from partita.engine.transport.stream_sender import StreamSender

ROOT = Path(__file__).parents[2]
DEADLINE_S = 30.0
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
SAYS = (
    b"",
    b"x",
    b"GET / HTTP/1.1\r\n\r\n",
    GREETING[:11],
    GREETING,
    GREETING.replace(b"NULL\0", b"CURVE") + b"\x06" + (1 << 40).to_bytes(8, "big") + bytes(9000),
    GREETING.replace(b"NULL\0\0", b"PLAIN\0") + b"\x04\x0c\x05HELLO\x01a\x01b",
    os.urandom(3000),
)


@dataclass
class Listener:
    """One that is served by `serve`, which returns what has reached a handler."""

    serve: Callable[[], object]
    close: Callable[[], object]


def mailbox() -> Listener:
    box = ZmqMailbox(KeyPair.generate())
    return Listener(lambda: box.receive(0.0), box.close)


def door() -> Listener:
    made = Door(KeyPair.generate(), sockets.LOOPBACK, is_authorised=lambda key: False)
    return Listener(lambda: made.receive(0.0), made.close)


def stream() -> Listener:
    sender = StreamSender("127.0.0.1", clear=False)
    began = time.monotonic()
    assert sender.offer(0, began) is not None

    def serve() -> bool:
        sender.serve(began + 10 * (time.monotonic() - began))  # its clock is faster
        return sender.is_open

    return Listener(serve, sender.close)


LISTENERS: dict[str, Callable[[], Listener]] = {"mailbox": mailbox, "door": door, "stream link": stream}


def listening() -> set[int]:
    """The TCP ports on which this process listens."""
    found = psutil.Process().net_connections("tcp")
    return {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def can_send(stranger: socket.socket) -> bool:
    """Whether it can be written to; its descriptor may be above 1,023."""
    poll = select.poll()
    poll.register(stranger, select.POLLOUT)
    return bool(poll.poll(0))


def has_ended(stranger: socket.socket) -> bool:
    with suppress(BlockingIOError):
        try:
            while stranger.recv(4096):  # a greeting at most
                pass
        except ConnectionError:
            pass
        return True
    return False


@pytest.mark.skipif(not CAN_SEAL, reason="the package 'cryptography' is not installed")
def test_strangers_reach_nothing_at_any_listening_socket(nothing_left: None, stack: ExitStack) -> None:
    before = listening()
    opened = [made() for made in LISTENERS.values()]
    for one in opened:
        stack.callback(one.close)
    ports = listening() - before
    assert len(ports) == len(LISTENERS)
    strangers = {
        (port, said): stack.enter_context(stream_connection("127.0.0.1", port))
        for said in SAYS
        for port in ports
    }
    deadline, told = time.monotonic() + DEADLINE_S, set[tuple[int, bytes]]()
    while strangers:
        assert time.monotonic() < deadline, f"{list(strangers)} are still connected"
        for port, said in list(strangers):
            stranger = strangers[port, said]
            if (port, said) not in told and can_send(stranger):
                told.add((port, said))
                with suppress(OSError):
                    stranger.send(said)
            elif (port, said) in told and has_ended(stranger):
                del strangers[port, said]
        for one in opened:
            assert not one.serve()


def test_a_process_of_another_user_is_not_listened_to(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = KeyPair.generate().public
    made = Rendezvous(key)
    with local_socket() as other:
        other.connect(rendezvous._address(key))
        monkeypatch.setattr(rendezvous.os, "geteuid", lambda: 4711)
        made.sweep()
        assert not made._pending and other.recv(1) == b""
    made.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_another_user_gets_no_connection(nothing_left: None) -> None:
    key = KeyPair.generate().public
    made = Rendezvous(key)
    child = os.fork()
    if not child:
        os.setuid(65534)
        read, _ = os.pipe()
        os._exit(0 if rendezvous.connect(key, bytes(16), read) is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert made.take(bytes(16)) is None and not made._pending
    made.close()


def test_a_rendezvous_that_strangers_beset_is_free_again(nothing_left: None) -> None:
    key = KeyPair.generate().public
    made = Rendezvous(key)
    silent = []
    with suppress(BlockingIOError):
        while True:
            silent.append(local_socket())
            silent[-1].connect(rendezvous._address(key))
    read, write = os.pipe()
    assert rendezvous.connect(key, bytes(16), write) is None
    made.sweep()
    mine = rendezvous.connect(key, bytes(16), write)
    taken = made.take(bytes(16))
    assert mine is not None and taken is not None
    for one in (mine, taken, made, *silent):
        one.close()
    os.close(read)
    os.close(write)


def test_only_two_modules_listen() -> None:
    listens = re.compile(r"\.listen\(|create_server|socketserver|http\.server|SOCK_STREAM|AF_UNIX, socket")
    found = {
        str(path.relative_to(ROOT / "engine"))
        for path in (ROOT / "engine").rglob("*.py")
        if listens.search(path.read_text())
    }
    pairs = {"launch/forks.py"}  # of a parent and its child
    assert found - pairs == {"transport/sockets.py", "transport/rendezvous.py"}
    assert all("socketpair(" in (ROOT / "engine" / path).read_text() for path in pairs)


def test_the_table_names_every_listener_and_its_limits() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    rows: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("| "):
            name = line.split("|")[1].strip()
            rows[name] = rows.get(name, "") + line
    assert {*LISTENERS, "rendezvous", "socket", "---"} == rows.keys()
    expected = {
        "mailbox": (
            f"{admission.BURST:.0f} new connections at once and {admission.RATE_S:.0f} a second",
            f"{connection_guard.MAX_HANDSHAKING} handshakes",
            f"{connection_guard.MAX_HANDSHAKE_BYTES >> 10} KiB",
            f"queue of {sockets._BACKLOG}",
            f"{connection_guard.MAX_UNDELIVERED_BYTES >> 20} MiB without",
            f"{authenticator._MAX_CONNECTIONS} connections at once and {authenticator._CONNECTIONS_S:.0f} a",
            f"{conduct.BURST:,} messages without work and {conduct.RATE_S:.0f} a second",
        ),
        "door": (f"{conduct.BURST:,} requests", f"{conduct.MOST_REFUSED} a minute"),
        "stream link": (
            f"{stream_sender._MAX_STRANGERS} connections without a token; {stream_sender._MAX_ACCEPTED} for",
            f"{stream_sender._OFFER_S:.0f} seconds",
        ),
        "rendezvous": (f"{rendezvous._MAX_PENDING} waiting",),
    }
    for name, limits in expected.items():
        for limit in limits:
            assert limit in rows[name], (name, limit)
