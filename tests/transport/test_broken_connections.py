"""A broken connection loses nothing: neither the messages in flight nor those behind them."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import cast

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol import Message
from partita.engine.protocol.messages import Credit, Fetch, Peer
from partita.engine.transport.outbound import ACK_TIMEOUT_S, MAX_UNACKED_BYTES, OutboundConnection
from partita.engine.transport.reassembly import Reassembly
from partita.engine.transport.rendezvous import Rendezvous
from partita.engine.transport.shared_link import SharedLinkReceiver, SharedLinkSender
from partita.engine.transport.wire import CHUNK_BYTES, Ack, LinkOffer
from tests.transport.helpers import MIB, Hosts, collect, serve_until

KEY = "k" * 40


class Wire:
    """The encrypted socket of a sender: groups of frames in flight."""

    def __init__(self) -> None:
        self.in_flight: list[list[bytes]] = []
        self._more = False

    def send(self, data: bytes | zmq.Frame, flags: int, copy: bool = True) -> None:
        if not self._more:
            self.in_flight.append([])
        self._more = bool(flags & zmq.SNDMORE)
        self.in_flight[-1].append(data.bytes if isinstance(data, zmq.Frame) else data)

    def disconnect(self, endpoint: str) -> None:
        self.in_flight.clear()

    def close(self, linger: int) -> None:
        pass


class Ends:
    """A sender and a receiver on one machine, whose connection breaks and whose answers get lost."""

    def __init__(self, *, near: bool) -> None:
        self.rendezvous = Rendezvous(KEY)
        self.wire = Wire()
        self.answers: list[Ack] = []
        self.reassembly = Reassembly(max_payload=8 * MIB, accept=self._accept, send_ack=self._answer)
        self.outbound = OutboundConnection(
            Peer("right", 0, "", ""),
            cast("zmq.Socket[bytes]", self.wire),
            max_backlog=64 * MIB,
            stream=3,
            link=SharedLinkSender(KEY) if near else None,
        )
        self.sent = 0
        self.now = 0.0
        self.got: list[Message] = []

    def _accept(self, offer: LinkOffer) -> SharedLinkReceiver | None:
        connection = self.rendezvous.take(offer.token)
        return connection and SharedLinkReceiver(connection, offer.n_bytes, on_close=lambda _: None)

    def _answer(self, got: Ack) -> bool:
        self.answers.append(got)
        return True

    def send(self, n_bytes: int | None) -> None:
        payload = None if n_bytes is None else [memoryview(bytes(n_bytes))]
        self.outbound.send(Credit(self.sent), payload, n_bytes or 0)
        self.sent += 1

    def deliver(self, groups: int) -> None:
        for _ in range(min(groups, len(self.wire.in_flight))):
            group = [memoryview(frame) for frame in self.wire.in_flight.pop(0)]
            self.got += [message for message, _ in self.reassembly.add(group)]

    def look(self) -> None:
        self.got += [message for message, _ in self.reassembly.poll_link()]

    def answer(self) -> None:
        answers, self.answers[:] = list(self.answers), []
        for got in answers:
            self.outbound.on_ack(got, self.now)

    def wait(self) -> None:
        self.now += 10 * ACK_TIMEOUT_S
        self.outbound.request_ack_when_due(float("inf"))

    def close(self) -> None:
        self.outbound.close()
        self.reassembly.close()
        self.rendezvous.close()


sizes = st.sampled_from([None, 0, 1, 1000, CHUNK_BYTES + 5])
moves = st.one_of(
    st.tuples(st.just("send"), sizes),
    st.tuples(st.just("deliver"), st.integers(1, 4)),
    st.tuples(st.just("break"), st.integers(1, 5)),
    st.tuples(st.sampled_from(["look", "answer", "lose answers", "wait"]), st.none()),
)


@given(st.booleans(), st.lists(moves, max_size=60))
def test_every_message_comes_once_and_in_order(near: bool, steps: Sequence[tuple[str, int | None]]) -> None:
    ends = Ends(near=near)
    with contextlib.closing(ends):
        for what, n in steps:
            match what:
                case "send":
                    ends.send(n)
                case "deliver":
                    ends.deliver(n or 1)
                case "break":  # what has left is lost; what ZeroMQ still holds is sent later
                    del ends.wire.in_flight[:n]
                case "look":
                    ends.look()
                case "answer":
                    ends.answer()
                case "lose answers":
                    ends.answers.clear()
                case "wait":
                    ends.wait()
            assert ends.got == [Credit(number) for number in range(len(ends.got))]
        for _ in range(3):  # asked, answered, sent again
            ends.wait()
            ends.deliver(10_000)
            ends.look()
            ends.answer()
        ends.deliver(10_000)
        assert ends.got == [Credit(number) for number in range(ends.sent)]
        ends.wait()
        ends.deliver(10_000)
        ends.answer()
        assert not ends.outbound._unacked, "acknowledged messages are dropped"


def test_a_peer_that_never_acknowledges_costs_bounded_memory() -> None:
    ends = Ends(near=False)
    with contextlib.closing(ends):
        for _ in range(300):
            ends.send(CHUNK_BYTES)
            ends.wire.in_flight.clear()
        assert ends.outbound._unacked_bytes <= MAX_UNACKED_BYTES
        ends.wait()
        for _ in range(2):  # it learns that the first of them are lost for good, and has the rest
            ends.deliver(10_000)
            ends.answer()
        ends.deliver(10_000)
        assert ends.got == [Credit(number) for number in range(300 - len(ends.got), 300)]
        assert len(ends.got) > 50


@given(st.lists(st.builds(Ack, st.sampled_from([0, 1, 2, 3 << 32, (3 << 32) + 2, 1 << 62]), st.booleans())))
def test_no_acknowledgement_of_a_member_raises_or_repeats_without_end(acks: list[Ack]) -> None:
    ends = Ends(near=False)
    with contextlib.closing(ends):
        ends.send(None)
        ends.send(None)
        for got in acks:
            ends.outbound.on_ack(got, 0.0)
        assert len(ends.wire.in_flight) <= 2 + 3 * 3  # once, and again after each that was acknowledged


class Relay:
    """Carries bytes between a port of its own and another one, until its connections are cut."""

    def __init__(self, endpoint: str) -> None:
        self._target = int(endpoint.rsplit(":", 1)[1])
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        """All connections end at once, with whatever is in them."""
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()
            self._connections.clear()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                come, _ = self._listening.accept()
                gone = socket.create_connection(("127.0.0.1", self._target))
                with self._lock:
                    self._connections += [come, gone]
                for source, target in ((come, gone), (gone, come)):
                    self._threads.append(threading.Thread(target=self._carry, args=(source, target)))
                    self._threads[-1].start()

    @staticmethod
    def _carry(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def relays(nothing_left: None) -> Iterator[list[Relay]]:
    made: list[Relay] = []
    yield made
    for relay in made:
        relay.close()


@pytest.mark.parametrize("near", [False, True], ids=["far", "near"])
def test_what_a_broken_connection_loses_is_sent_again(relays: list[Relay], near: bool) -> None:
    hosts = Hosts("shared memory" if near else "zeromq")
    with contextlib.closing(hosts):
        left, left_peer = hosts.open("left")
        right, right_peer = hosts.open("right")
        left.allow([right_peer])
        right.allow([left_peer])
        for box, peer in ((left, right_peer), (right, left_peer)):
            relays.append(Relay(peer.endpoint))
            box.connect(replace_endpoint(peer, relays[-1].endpoint))
        got: list[Message] = []
        n = 0
        for round_ in range(6):
            for _ in range(12):
                left.send("right", Fetch(n), bytes((n % 3) * MIB))
                n += 1
            if round_ < 5:
                got += [event.message for event in right.receive(0.02)]
                left.receive(0.0)
                relays[round_ % 2].cut()
        got += [event.message for event in collect(right, n - len(got), others=[left])]
        assert got == [Fetch(number) for number in range(n)]


def replace_endpoint(peer: Peer, endpoint: str) -> Peer:
    return Peer(peer.name, peer.incarnation, endpoint, peer.public_key, peer.machine)


def test_the_last_message_before_a_break_is_sent_again_though_nothing_follows(relays: list[Relay]) -> None:
    hosts = Hosts("zeromq")
    with contextlib.closing(hosts):
        left, left_peer = hosts.open("left")
        right, right_peer = hosts.open("right")
        left.allow([right_peer])
        right.allow([left_peer])
        relays.append(Relay(right_peer.endpoint))
        left.connect(replace_endpoint(right_peer, relays[0].endpoint))
        right.connect(left_peer)
        left.send("right", Fetch(0))
        assert [event.message for event in collect(right, 1, others=[left])] == [Fetch(0)]
        left.send("right", Fetch(1), bytes(8 * MIB))
        relays[0].cut()
        arrived = serve_until(lambda: right.counters.received_of("Fetch").messages == 2, [left, right], "it")
        assert [event.message for event in arrived] == [Fetch(1)]
