"""Shared-memory link and socket: messages are delivered in the order of sending, whatever arrives first."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol import encode
from partita.engine.protocol.messages import Credit, Fetch, Malformed
from partita.engine.transport import KeyPair
from partita.engine.transport.reassembly import Reassembly
from partita.engine.transport.rendezvous import Rendezvous
from partita.engine.transport.shared_link import SharedLinkReceiver, SharedLinkSender
from partita.engine.transport.wire import (
    CHUNK_BYTES,
    STREAM_BITS,
    LinkOffer,
    MessageStart,
    encode_control,
    frames,
)

MAX_PAYLOAD = 3 * CHUNK_BYTES
KEY = KeyPair.generate().public


class Ends:
    """Both ends of a link, and the sender's encrypted socket as a list of frames in flight."""

    def __init__(self) -> None:
        self.rendezvous = Rendezvous(KEY)
        self.reassembly = Reassembly(max_payload=MAX_PAYLOAD, accept=self.accept)
        self.sender = SharedLinkSender(KEY)
        self.in_flight: list[list[bytes]] = []
        self.got: list[object] = []
        self.number = 0

    def accept(self, offer: LinkOffer) -> SharedLinkReceiver | None:
        connection = self.rendezvous.take(offer.token)
        return connection and SharedLinkReceiver(connection, offer.n_bytes, on_close=lambda _: None)

    def send(self, n_bytes: int | None, *, near: bool) -> None:
        message, payload = Credit(self.number), None if n_bytes is None else [memoryview(bytes(n_bytes))]
        offer = self.sender.offer(n_bytes or 0, number=self.number)
        if offer is not None:
            self.in_flight.append([encode_control(offer)])
        header = self.sender.place(self.number, message, payload, n_bytes or 0) if near else None
        if header is None:
            self.in_flight += [
                [envelope] if chunk is None else [envelope, bytes(chunk)]
                for envelope, chunk in frames(self.number, message, payload)
            ]
        elif not self.sender.send(header):
            self.in_flight.append([header])
        self.number += 1

    def deliver(self, groups: int) -> None:
        for _ in range(min(groups, len(self.in_flight))):
            group = [memoryview(frame) for frame in self.in_flight.pop(0)]
            self.got += [message for message, _ in self.reassembly.add(group)]

    def look(self) -> None:
        self.got += [message for message, _ in self.reassembly.poll_link()]

    def close(self) -> None:
        self.sender.close()
        self.reassembly.close()
        self.rendezvous.close()


@pytest.fixture
def ends(nothing_left: None) -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


sizes = st.sampled_from([None, 0, 1, 1000, CHUNK_BYTES, 2 * CHUNK_BYTES + 5])
moves = st.one_of(
    st.tuples(st.just("send"), sizes, st.booleans()),
    st.tuples(st.just("deliver"), st.integers(1, 4), st.none()),
    st.tuples(st.just("look"), st.none(), st.none()),
)


@given(st.lists(moves, max_size=40))
def test_messages_come_in_the_order_of_sending(steps: list[tuple[str, int | None, bool | None]]) -> None:
    ends = Ends()
    ends.send(5 * CHUNK_BYTES // 2, near=False)
    ends.deliver(10)
    for what, n, near in steps:
        if what == "send":
            ends.send(n, near=bool(near))
        elif what == "deliver":
            ends.deliver(n or 1)
        else:
            ends.look()
        assert ends.got == [Credit(number) for number in range(len(ends.got))]
    ends.deliver(10_000)
    ends.look()
    assert ends.got == [Credit(number) for number in range(ends.number)]
    assert ends.reassembly.malformed == 0
    ends.close()


def test_a_lost_message_without_retransmission_is_skipped(ends: Ends) -> None:
    ends.send(None, near=False)
    ends.deliver(10)
    ends.send(None, near=False)
    ends.in_flight.clear()  # the connection broke
    ends.send(10, near=True)
    ends.look()
    assert ends.got == [Credit(0)]
    ends.send(None, near=False)
    ends.deliver(1)
    assert ends.got == [Credit(0), Credit(2), Credit(3)]


def test_a_larger_ring_does_not_lose_messages_in_flight(ends: Ends) -> None:
    ends.send(None, near=False)
    ends.deliver(10)
    for _ in range(20):
        ends.send(CHUNK_BYTES // 2, near=True)
    offer = ends.sender.offer(1 << 25, number=ends.number)
    assert offer is not None
    ends.in_flight.append([encode_control(offer)])
    ends.send(10, near=True)  # not accepted yet
    ends.deliver(10)
    ends.send(10, near=True)
    ends.look()
    assert ends.got == [Credit(number) for number in range(23)]


headers = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.builds(
        MessageStart,
        st.sampled_from([0, 1, 2, 3, 2**62]),
        st.none() | st.sampled_from([0, 1, 5, MAX_PAYLOAD, MAX_PAYLOAD + 1, 2**62]),
        st.sampled_from([encode(Fetch(1)), b"", b"\xc1"]),
        st.none() | st.sampled_from([0, 1, 64, 128, (1 << 24) - 64, 1 << 24, 2**62]),
    ).map(msgspec.msgpack.encode),
    st.just(encode_control(LinkOffer(bytes(16), 4096, 1))),
)


@given(st.lists(headers, max_size=30))
def test_no_header_of_a_member_raises_or_reads_beyond_the_ring(headers_sent: list[bytes]) -> None:
    ends = Ends()
    ends.send(None, near=False)
    ends.deliver(10)
    channel = ends.sender._channel
    assert isinstance(channel, socket.socket)
    for header in headers_sent:
        channel.send(header)
        for _, payload in ends.reassembly.poll_link():
            assert payload is None or payload.to_bytes() == bytes(payload.n_bytes)
            assert payload is None or payload.n_bytes <= MAX_PAYLOAD
    ends.number = 1 << STREAM_BITS  # a new connection, whatever came before it
    ends.send(None, near=False)
    ends.deliver(10)
    assert Credit(1 << STREAM_BITS) in ends.got
    ends.close()


def test_an_offer_without_a_connection_is_not_accepted(ends: Ends) -> None:
    ends.in_flight.append([encode_control(LinkOffer(bytes(16), 1 << 24, 0))])
    ends.deliver(1)
    ends.look()
    ends.send(None, near=True)
    ends.deliver(10)
    assert ends.got == [Credit(0)]


def test_a_ring_that_is_not_what_was_offered_is_refused(ends: Ends) -> None:
    offer = ends.sender.offer(1, number=0)
    assert offer is not None
    ends.in_flight.append([encode_control(LinkOffer(offer.token, 2 * offer.n_bytes, 0))])
    ends.deliver(1)
    assert ends.reassembly.malformed == 1
    for _ in range(3):
        ends.send(10, near=True)
    ends.deliver(10)
    refused, *taken = ends.got
    assert isinstance(refused, Malformed) and taken == [Credit(0), Credit(1), Credit(2)]
