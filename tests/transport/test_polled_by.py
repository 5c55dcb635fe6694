"""A mailbox whose messages another mailbox of the same thread waits for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from partita.engine.protocol.messages import Heartbeat, Peer
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.zeromq import ZmqMailbox

SECONDS = 10.0


def peer_of(mailbox: ZmqMailbox, name: str, machine: str) -> Peer:
    return Peer(name, 0, mailbox.endpoint, mailbox.public_key, machine)


@pytest.fixture(params=["", "here"], ids=["encrypted", "shared memory"])
def three(request: pytest.FixtureRequest) -> Iterator[tuple[str, ZmqMailbox, ZmqMailbox, ZmqMailbox]]:
    machine: str = request.param
    first, other = (ZmqMailbox(KeyPair.generate(), machine=machine) for _ in range(2))
    with first, other, ZmqMailbox(KeyPair.generate(), machine=machine, polled_by=first) as second:
        yield machine, first, second, other


def test_the_first_waits_for_messages_to_both(
    three: tuple[str, ZmqMailbox, ZmqMailbox, ZmqMailbox],
) -> None:
    machine, first, second, other = three
    for mailbox, name in ((first, "first"), (second, "second")):
        mailbox.allow([peer_of(other, "other", machine)])
        other.connect(peer_of(mailbox, name, machine))
    other.allow([])
    for n in range(20):  # the first opens shared memory, where there is some
        for name in ("first", "second"):
            other.send(name, Heartbeat(n), b"x" * n * 1000)
    found: dict[str, list[int]] = {"first": [], "second": []}
    for _ in range(1000):
        for name, arrived in (("first", first.receive(0.05)), ("second", second.receive(SECONDS))):
            for event in arrived:
                assert event.message == Heartbeat(len(found[name])), (name, event)
                assert event.payload.n_bytes == len(found[name]) * 1000  # type: ignore[attr-defined]
                found[name].append(len(found[name]))
        other.receive(0.0)
        if found["first"] == found["second"] == list(range(20)):
            break
    assert found["first"] == found["second"] == list(range(20))


def test_a_wake_up_of_the_second_ends_the_wait_of_the_first(
    three: tuple[str, ZmqMailbox, ZmqMailbox, ZmqMailbox],
) -> None:
    _, first, second, _ = three
    second.wake()
    assert first.receive(SECONDS) == []
    assert second.receive(SECONDS) == []


@pytest.mark.slow
def test_the_first_goes_on_when_the_second_is_closed(
    three: tuple[str, ZmqMailbox, ZmqMailbox, ZmqMailbox],
) -> None:
    machine, first, second, other = three
    second.close()
    first.allow([peer_of(other, "other", machine)])
    other.connect(peer_of(first, "first", machine))
    other.send("first", Heartbeat(1))
    arrived = [event for _ in range(100) for event in (other.receive(0.0), first.receive(0.05))[1]]
    assert [event.message for event in arrived] == [Heartbeat(1)]
