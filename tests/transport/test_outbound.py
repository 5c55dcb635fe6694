from __future__ import annotations

from typing import cast

import pytest
import zmq

from partita.engine.protocol import Message
from partita.engine.protocol.messages import Credit, Peer
from partita.engine.transport import PeerStalled
from partita.engine.transport.outbound import OutboundConnection
from partita.engine.transport.reassembly import Reassembly
from tests.transport.helpers import MIB


class FakeSocket:
    """Takes as many messages as it has room for, the way a PUSH socket does: a whole message, or EAGAIN."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.groups: list[list[bytes]] = []
        self._more = False

    def send(self, data: bytes | zmq.Frame, flags: int, copy: bool = True) -> None:
        if not self._more:
            if self.room == 0:
                raise zmq.Again
            self.room -= 1
            self.groups.append([])
        self._more = bool(flags & zmq.SNDMORE)
        self.groups[-1].append(data.bytes if isinstance(data, zmq.Frame) else data)

    def messages(self) -> list[Message]:
        reassembly = Reassembly(max_payload=64 * MIB)
        complete = [reassembly.add([memoryview(frame) for frame in group]) for group in self.groups]
        assert reassembly.malformed == 0
        return [message for found in complete for message, _ in found]


def outgoing(room: int, max_backlog: int = 64 * MIB) -> tuple[OutboundConnection, FakeSocket]:
    socket = FakeSocket(room)
    peer = Peer("right", 0, "", "")
    return OutboundConnection(peer, cast("zmq.Socket[bytes]", socket), max_backlog=max_backlog), socket


def send(outbound: OutboundConnection, step: int, n_bytes: int) -> None:
    outbound.send(Credit(step), [memoryview(bytes(n_bytes))] if n_bytes else None, n_bytes)


def test_nothing_overtakes_what_waits() -> None:
    outbound, socket = outgoing(room=1)
    steps = range(12)
    for step in steps:
        send(outbound, step, 3 * MIB if step % 2 else 0)
        socket.room += 1  # opens up at any time, also in the middle of a message
    while outbound.has_backlog:
        socket.room += 1
        outbound.flush()
    assert socket.messages() == [Credit(step) for step in steps]


class OpensLate(FakeSocket):
    """Refuses once, and has room for everything right after that."""

    def send(self, data: bytes | zmq.Frame, flags: int, copy: bool = True) -> None:
        try:
            super().send(data, flags, copy)
        except zmq.Again:
            self.room = 1000
            raise


def test_chunks_keep_their_order_when_room_appears_within_a_message() -> None:
    socket = OpensLate(room=1)
    outbound = OutboundConnection(
        Peer("right", 0, "", ""), cast("zmq.Socket[bytes]", socket), max_backlog=64 * MIB
    )
    send(outbound, 0, 5 * MIB)
    assert outbound.has_backlog
    outbound.flush()
    assert socket.messages() == [Credit(0)]


def test_a_stalled_peer_gets_nothing_of_what_is_refused() -> None:
    outbound, socket = outgoing(room=0, max_backlog=2 * MIB)
    send(outbound, 0, MIB)
    with pytest.raises(PeerStalled, match="'right'"):
        send(outbound, 1, MIB)
    send(outbound, 2, 1000)
    socket.room = 100
    outbound.flush()
    assert socket.messages() == [Credit(0), Credit(2)]
    assert not outbound.has_backlog


class RecordingSocket(FakeSocket):
    """Records how it is ended."""

    def __init__(self) -> None:
        super().__init__(room=10)
        self.ended: list[str] = []

    def disconnect(self, endpoint: str) -> None:
        self.ended.append(f"disconnect {endpoint}")

    def close(self, linger: int) -> None:
        self.ended.append(f"close {linger}")


def test_a_connection_is_dropped_before_its_socket_is_left_to_the_reaper() -> None:
    """A reaper that came late let the peer have a backlog that was dropped (19 of 60 times)."""
    socket = RecordingSocket()
    peer = Peer("right", 0, "tcp://127.0.0.1:1", "")
    OutboundConnection(peer, cast("zmq.Socket[bytes]", socket), max_backlog=MIB).close()
    assert socket.ended == ["disconnect tcp://127.0.0.1:1", "close 0"]
