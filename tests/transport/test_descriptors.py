"""Closing leaves nothing behind, in whatever state the mailbox was."""

from __future__ import annotations

import pytest

from partita.engine.protocol.messages import Fetch, Peer
from partita.engine.transport import KeyPair, ZmqMailbox
from tests.transport.helpers import MIB, Hosts, collect


def test_a_mailbox_with_a_backlog_closes(nothing_left: None) -> None:
    hosts = Hosts("zeromq")
    left, right = hosts.pair()
    left.send("right", Fetch(1), bytes(64 * MIB))
    right.receive(0.01)
    hosts.close()


def test_a_mailbox_that_reaches_nobody_closes(nothing_left: None) -> None:
    with ZmqMailbox(KeyPair.generate()) as box, ZmqMailbox(KeyPair.generate()) as gone:
        gone.close()
        for at in range(5):
            box.connect(Peer(f"part 0.{at}", 0, gone.endpoint, gone.public_key))
            box.send(f"part 0.{at}", Fetch(1), bytes(20 * MIB))
        assert box.receive(0.05) == []


def test_replaced_connections_leave_nothing(nothing_left: None) -> None:
    hosts = Hosts("zeromq")
    left, left_peer = hosts.open("left")
    for incarnation in range(5):
        right, right_peer = hosts.open("right", incarnation=incarnation)
        right.allow([left_peer])
        left.connect(right_peer)
        left.send("right", Fetch(incarnation))
        collect(right, 1, others=[left])
        right.close()
    hosts.close()


@pytest.mark.parametrize("endpoint", ["tcp://192.0.2.1:5555", "nonsense"])
def test_a_mailbox_that_cannot_listen_leaves_nothing(endpoint: str, nothing_left: None) -> None:
    with pytest.raises((OSError, ValueError)):
        ZmqMailbox(KeyPair.generate(), endpoint=endpoint)
