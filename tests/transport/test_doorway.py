"""Descriptors that go from one host to another: only with the right token, and none is left open."""

from __future__ import annotations

import os

import pytest

from partita.engine.transport import KeyPair
from partita.engine.transport.doorway import TOKEN_BYTES, Doorway, _address, hand_over
from partita.engine.transport.sockets import local_socket

TOKEN, OTHER = b"t" * TOKEN_BYTES, b"o" * TOKEN_BYTES


def key() -> str:
    return KeyPair.generate().public


def pipe_over(doorway_key: str, token: bytes) -> int:
    """Hands over the end of a pipe; returns the other end, which sees when nobody holds it any more."""
    read, write = os.pipe()
    try:
        assert hand_over(write, token, doorway_key)
    finally:
        os.close(write)
    return read


def is_dropped(read: int) -> bool:
    """Whether nobody has the writing end."""
    os.set_blocking(read, False)
    try:
        return os.read(read, 1) == b""
    except BlockingIOError:
        return False


def test_a_descriptor_is_taken_with_its_token(nothing_left: None) -> None:
    door = Doorway(name := key())
    read = pipe_over(name, TOKEN)
    assert door.take(OTHER) is None
    taken = door.take(TOKEN)
    assert taken is not None
    assert not os.get_inheritable(taken)
    os.write(taken, b"it is the same pipe")
    assert os.read(read, 100) == b"it is the same pipe"
    assert door.take(TOKEN) is None
    os.close(taken)
    os.close(read)
    door.close()


def test_what_nobody_asks_for_is_closed(nothing_left: None) -> None:
    door = Doorway(name := key())
    first = [pipe_over(name, n.to_bytes(TOKEN_BYTES)) for n in range(60)]
    assert door.take(OTHER) is None
    later = [pipe_over(name, (100 + n).to_bytes(TOKEN_BYTES)) for n in range(60)]
    assert door.take(OTHER) is None
    assert all(is_dropped(read) for read in first[:56])  # the oldest have made room
    assert not any(is_dropped(read) for read in later)
    door.close()
    assert all(is_dropped(read) for read in first + later)
    for read in first + later:
        os.close(read)


def test_a_crowd_at_the_door_is_not_waited_for(nothing_left: None) -> None:
    door = Doorway(name := key())
    visitors = [local_socket() for _ in range(200)]
    refused = 0
    for visitor in visitors:  # they come and say nothing
        try:
            visitor.connect(_address(name))
        except BlockingIOError:
            refused += 1
    assert refused > 0
    read, write = os.pipe()
    assert not hand_over(write, TOKEN, name)
    assert door.take(TOKEN) is None
    assert door.take(TOKEN) is None
    assert hand_over(write, TOKEN, name)
    taken = door.take(TOKEN)
    assert taken is not None
    for descriptor in (taken, read, write):
        os.close(descriptor)
    for visitor in visitors:
        visitor.close()
    door.close()


@pytest.mark.parametrize("said", [b"", b"short", b"x" * 1000])
def test_packets_that_are_none_are_dropped(said: bytes, nothing_left: None) -> None:
    door = Doorway(name := key())
    with local_socket() as visitor:
        visitor.connect(_address(name))
        visitor.send(said)
    read = pipe_over(name, TOKEN)
    taken = door.take(TOKEN)
    assert taken is not None
    os.close(taken)
    assert is_dropped(read)
    os.close(read)
    door.close()


def test_nobody_is_there(nothing_left: None) -> None:
    read, write = os.pipe()
    assert not hand_over(write, TOKEN, key())
    Doorway(gone := key()).close()
    assert not hand_over(write, TOKEN, gone)
    os.close(read)
    os.close(write)


def test_who_is_another_user_gets_nothing(monkeypatch: pytest.MonkeyPatch, nothing_left: None) -> None:
    door = Doorway(name := key())
    read = pipe_over(name, TOKEN)
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    assert door.take(TOKEN) is None, "it came from somebody else"
    write = os.dup(read)
    assert not hand_over(write, TOKEN, name), "somebody else listens"
    for descriptor in (read, write):
        os.close(descriptor)
    door.close()


def test_an_address_is_used_once(nothing_left: None) -> None:
    door = Doorway(name := key())
    with pytest.raises(OSError, match="in use"):
        Doorway(name)
    door.close()
