"""Doors and visits: who has the keys is answered, and why anybody else is not is known on both sides."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from partita.engine.protocol.messages import Peer
from partita.engine.transport import KeyPair
from partita.engine.transport.addresses import address_of, address_towards, interface_of, unreachable
from partita.engine.transport.door import Door, Stranger
from partita.engine.transport.sockets import SocketFactory
from partita.engine.transport.visit import Trouble, Visit

DEADLINE_S = 30.0
MEMBER = KeyPair.generate()


@pytest.fixture
def allowed() -> set[str]:
    return {MEMBER.public}


@pytest.fixture
def door(allowed: set[str]) -> Iterator[Door]:
    with Door(KeyPair.generate(), "tcp://127.0.0.1:*", is_authorised=allowed.__contains__) as opened:
        yield opened


def peer(door: Door, key: str | None = None) -> Peer:
    return Peer("the pool", 0, door.endpoint, key or door.public_key)


def until(done: Callable[[], bool], door: Door, visit: Visit) -> list[bytes]:
    """Asks and answers until something is the case; returns the answers."""
    found: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    while not done() and not (found and done is _answered):
        assert time.monotonic() < deadline, (visit.trouble, found)
        visit.send(b"hello")
        for asked in door.receive(0.02):
            door.answer(asked.route, asked.key.encode() + b" " + asked.data)
        found += visit.receive()
    return found


def _answered() -> bool:
    return False


def test_a_member_is_answered_and_known_by_its_key(door: Door) -> None:
    with Visit(MEMBER, peer(door)) as visit:
        answers = until(_answered, door, visit)
        assert answers[0] == MEMBER.public.encode() + b" hello"
        assert visit.trouble is None and not door.strangers()


def test_an_unknown_key_is_refused_named_and_let_in_once_it_is_authorised(
    door: Door, allowed: set[str]
) -> None:
    stranger = KeyPair.generate()
    with Visit(stranger, peer(door)) as visit:
        assert not until(lambda: visit.trouble is Trouble.REFUSED, door, visit)
        assert door.strangers() == [Stranger("127.0.0.1", stranger.public)]
        allowed.add(stranger.public)
        assert until(_answered, door, visit)
        allowed.clear()  # a revoked key is out at once, on its open connection
        while visit.receive():
            pass
        visit.send(b"hello")
        assert not door.receive(0.3)


def test_a_refusal_that_comes_at_once_is_not_missed(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """The door refuses before the constructor of the visit has returned."""
    stranger, connect = KeyPair.generate(), SocketFactory._connect
    found: list[Stranger] = []

    def connect_and_wait(factory: SocketFactory, *arguments: Any) -> None:
        connect(factory, *arguments)
        deadline = time.monotonic() + DEADLINE_S
        while not found:
            assert time.monotonic() < deadline
            door.receive(0.02)
            found.extend(door.strangers())

    monkeypatch.setattr(SocketFactory, "_connect", connect_and_wait)
    with Visit(stranger, peer(door)) as visit:
        assert found == [Stranger("127.0.0.1", stranger.public)]
        until(lambda: visit.trouble is Trouble.REFUSED, door, visit)


def test_a_visitor_with_another_key_of_the_door_is_found(door: Door) -> None:
    seen: list[Stranger] = []
    with Visit(MEMBER, peer(door, KeyPair.generate().public)) as visit:

        def both() -> bool:
            seen.extend(door.strangers())
            return visit.trouble is Trouble.OTHER_KEY and bool(seen)

        assert not until(both, door, visit)
    assert [one.key for one in seen] == [""] and seen[0].address in ("127.0.0.1", "")


def test_a_closed_port_is_found(door: Door) -> None:
    with Visit(MEMBER, Peer("the pool", 0, "tcp://127.0.0.1:1", door.public_key)) as visit:
        assert not until(lambda: visit.trouble is Trouble.UNREACHABLE, door, visit)
        assert visit.reason() == "nothing listens at this port"
    assert unreachable(door.endpoint) is None


def test_addresses_have_interfaces() -> None:
    assert interface_of("127.0.0.1") == "lo" and address_of("lo") == "127.0.0.1"
    assert address_towards("tcp://127.0.0.1:1") == "127.0.0.1"
    assert unreachable("tcp://no.such.host.invalid:1") == "its name has no address"
    with pytest.raises(ValueError, match="this machine has no interface 'eth99'"):
        address_of("eth99")
