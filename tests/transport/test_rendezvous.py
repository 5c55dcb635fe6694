"""Visitors, and what they leave: only with the right token, and nothing stays open."""

from __future__ import annotations

import os
import socket

import pytest

from partita.engine.transport import KeyPair
from partita.engine.transport.rendezvous import TOKEN_BYTES, Rendezvous, _address, connect
from partita.engine.transport.sockets import local_socket

TOKEN, OTHER = b"t" * TOKEN_BYTES, b"o" * TOKEN_BYTES


def key() -> str:
    return KeyPair.generate().public


def leave_pipe(doorway_key: str, token: bytes) -> tuple[socket.socket, int]:
    """Leaves the writing end of a pipe; returns the client, and the other end, which shows who has it."""
    read, write = os.pipe()
    client = connect(doorway_key, token, write)
    os.close(write)
    assert client is not None
    return client, read


def is_dropped(read: int) -> bool:
    """Whether nobody has the writing end."""
    os.set_blocking(read, False)
    try:
        return os.read(read, 1) == b""
    except BlockingIOError:
        return False


def test_a_connection_is_taken_with_its_token(nothing_left: None) -> None:
    rendezvous = Rendezvous(name := key())
    client, read = leave_pipe(name, TOKEN)
    assert rendezvous.take(OTHER) is None
    taken = rendezvous.take(TOKEN)
    assert taken is not None
    assert not os.get_inheritable(taken.descriptor)
    os.write(taken.descriptor, b"it is the same pipe")
    assert os.read(read, 100) == b"it is the same pipe"
    client.send(b"one")
    client.send(b"two")
    assert [taken.channel.recv(100), taken.channel.recv(100)] == [b"one", b"two"]
    assert rendezvous.take(TOKEN) is None
    taken.close()
    assert is_dropped(read)
    os.close(read)
    client.close()
    rendezvous.close()


def test_unclaimed_connections_are_closed(nothing_left: None) -> None:
    rendezvous = Rendezvous(name := key())
    first = [leave_pipe(name, n.to_bytes(TOKEN_BYTES)) for n in range(60)]
    assert rendezvous.take(OTHER) is None
    later = [leave_pipe(name, (100 + n).to_bytes(TOKEN_BYTES)) for n in range(60)]
    assert rendezvous.take(OTHER) is None
    assert all(is_dropped(read) for _, read in first[:56])  # the oldest have made room
    assert not any(is_dropped(read) for _, read in later)
    rendezvous.close()
    for client, read in first + later:
        assert is_dropped(read)
        client.close()
        os.close(read)


def test_many_silent_clients_do_not_block_the_rendezvous(nothing_left: None) -> None:
    rendezvous = Rendezvous(name := key())
    crowd = [local_socket() for _ in range(200)]
    refused = 0
    for one in crowd:  # they come and say nothing
        try:
            one.connect(_address(name))
        except BlockingIOError:
            refused += 1
    assert refused > 0
    read, write = os.pipe()
    assert connect(name, TOKEN, write) is None
    assert rendezvous.take(TOKEN) is None
    assert rendezvous.take(TOKEN) is None
    client = connect(name, TOKEN, write)
    assert client is not None
    taken = rendezvous.take(TOKEN)
    assert taken is not None
    taken.close()
    for descriptor in (read, write):
        os.close(descriptor)
    for one in (*crowd, client):
        one.close()
    rendezvous.close()


@pytest.mark.parametrize("packet", [b"", b"short", b"x" * 1000])
def test_malformed_packets_are_dropped(packet: bytes, nothing_left: None) -> None:
    rendezvous = Rendezvous(name := key())
    with local_socket() as client:
        client.connect(_address(name))
        client.send(packet)
        assert rendezvous.take(TOKEN) is None
        assert client.recv(1) == b""
    client, read = leave_pipe(name, TOKEN)
    taken = rendezvous.take(TOKEN)
    assert taken is not None
    taken.close()
    client.close()
    os.close(read)
    rendezvous.close()


def test_connecting_to_no_host_returns_none(nothing_left: None) -> None:
    read, write = os.pipe()
    assert connect(key(), TOKEN, write) is None
    Rendezvous(gone := key()).close()
    assert connect(gone, TOKEN, write) is None
    os.close(read)
    os.close(write)


def test_another_user_is_refused(monkeypatch: pytest.MonkeyPatch, nothing_left: None) -> None:
    rendezvous = Rendezvous(name := key())
    client, read = leave_pipe(name, TOKEN)
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    assert rendezvous.take(TOKEN) is None, "it came from somebody else"
    assert is_dropped(read)
    write = os.dup(read)
    assert connect(name, TOKEN, write) is None, "somebody else listens"
    for descriptor in (read, write):
        os.close(descriptor)
    client.close()
    rendezvous.close()


def test_an_address_is_used_once(nothing_left: None) -> None:
    rendezvous = Rendezvous(name := key())
    with pytest.raises(OSError, match="in use"):
        Rendezvous(name)
    rendezvous.close()
