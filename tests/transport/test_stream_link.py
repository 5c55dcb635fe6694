"""Stream link between hosts of two machines: messages arrive once and in order, and strangers get nothing."""

from __future__ import annotations

import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from partita.engine.protocol import encode
from partita.engine.protocol.messages import Credit, Fetch, Malformed, Peer, SetUp
from partita.engine.transport import Encryption, KeyPair, Payload, Reading, Versioned, ZmqMailbox
from partita.engine.transport.encryption import ENCRYPTED
from partita.engine.transport.outbound import OutboundConnection
from partita.engine.transport.reassembly import Reassembly
from partita.engine.transport.seal import CAN_SEAL, KEY_BYTES, TAG_BYTES, BrokenSeal, Seal, new_key
from partita.engine.transport.sockets import stream_connection
from partita.engine.transport.stream_link import CLEAR, RECORD_BYTES, SEALED
from partita.engine.transport.stream_receiver import StreamReceiver
from partita.engine.transport.stream_sender import StreamSender
from partita.engine.transport.wire import INLINE_BYTES, MessageStart, StreamOffer
from tests.transport.helpers import DEADLINE_S, MIB, Hosts, collect, serve_until

pytestmark = pytest.mark.skipif(not CAN_SEAL, reason="the package 'cryptography' is not installed")

MAX_PAYLOAD = 2 * MIB
SIZES = [None, 0, 1, INLINE_BYTES, INLINE_BYTES + 1, RECORD_BYTES, RECORD_BYTES + 1, MIB + 5]


def link_of(box: ZmqMailbox, name: str) -> StreamSender:
    outbound: OutboundConnection = box._outbound[name]
    assert outbound.stream_link is not None
    return outbound.stream_link


def open_link(left: ZmqMailbox, right: ZmqMailbox) -> StreamSender:
    """The first payload takes the encrypted socket, after the offer of a link."""
    left.send("right", Fetch(0), bytes(MIB))
    collect(right, 1, others=[left])
    link = link_of(left, "right")
    serve_until(lambda: link.is_open, [left, right], "the link")
    return link


def pair(encryption: Encryption = ENCRYPTED) -> tuple[ZmqMailbox, ZmqMailbox]:
    left, right = (ZmqMailbox(KeyPair.generate(), encryption=encryption) for _ in range(2))
    peers = [
        Peer(n, 0, b.endpoint, b.public_key) for n, b in zip(("left", "right"), (left, right), strict=True)
    ]
    left.allow(peers[1:])
    right.allow(peers[:1])
    left.connect(peers[1])
    right.connect(peers[0])
    return left, right


@pytest.mark.parametrize("encrypt", [True, False], ids=["sealed", "clear"])
def test_a_versioned_payload_is_not_copied_and_read_until_it_is_acknowledged(
    encrypt: bool, nothing_left: None
) -> None:
    left, right = pair(Encryption(payloads=encrypt))
    with left, right:
        open_link(left, right)
        numbers, readings = np.full(16 * MIB, 3, np.uint8), list[Reading]()
        left.send("right", Credit(1), Versioned(numbers, readings))  # more than the connection takes
        assert [one.is_over for one in readings] == [False]
        (got,) = collect(right, 1, others=[left])
        assert got.payload.to_bytes() == numbers.tobytes()
        serve_until(lambda: readings[0].is_over, [left, right], "the acknowledgement")
        left.send("right", Credit(2), Versioned(numbers, readings))
        left.disconnect("right")
        assert readings[1].is_over, "nothing is sent again"


@pytest.mark.parametrize("encrypt", [True, False], ids=["sealed", "clear"])
def test_the_poll_waits_for_much_of_a_large_payload_and_for_a_byte_of_anything_else(
    encrypt: bool, nothing_left: None
) -> None:
    left, right = pair(Encryption(payloads=encrypt))
    with left, right:
        open_link(left, right)
        reassembly = next(iter(right._inbound._by_key.values()))[1]
        link = reassembly._link
        assert isinstance(link, StreamReceiver)

        def least() -> int:
            return socket.socket.getsockopt(link._channel, socket.SOL_SOCKET, socket.SO_RCVLOWAT)

        left.send("right", Credit(1), np.zeros(32 * MIB, np.uint8))  # of which the connection takes a part
        serve_until(lambda: least() > 1, [right], "the beginning of it")
        left.send("right", Credit(2), bytes(3))
        got = collect(right, 2, others=[left])
        assert [one.message for one in got] == [Credit(1), Credit(2)]
        assert least() == 1


def test_a_payload_that_is_sent_again_is_read_until_then(nothing_left: None) -> None:
    left, right = pair()
    with left, right:
        link = open_link(left, right)
        numbers, readings = np.full(MIB, 3, np.uint8), list[Reading]()
        for step in range(3):
            left.send("right", Credit(step), Versioned(numbers, readings))
        link._channel.shutdown(socket.SHUT_RDWR)
        assert not any(one.is_over for one in readings)
        got = collect(right, 3, others=[left])
        assert [one.message for one in got] == [Credit(step) for step in range(3)]
        assert {one.payload.to_bytes() for one in got} == {b"\3" * MIB}
        serve_until(lambda: all(one.is_over for one in readings), [left, right], "the acknowledgement")


@pytest.mark.parametrize("encrypt", [True, False], ids=["sealed", "clear"])
def test_payloads_of_every_size_arrive_in_order(encrypt: bool, nothing_left: None) -> None:
    left, right = pair(Encryption(payloads=encrypt))
    with left, right:
        open_link(left, right)
        random = np.random.default_rng(1)
        sent = [None if n is None else random.integers(0, 256, n, np.uint8) for n in SIZES]
        for step, payload in enumerate(sent):
            left.send("right", Credit(step), payload)
        got = collect(right, len(sent), others=[left])
        assert [one.message for one in got] == [Credit(step) for step in range(len(sent))]
        for one, payload in zip(got, sent, strict=True):
            assert (one.payload is None) == (payload is None)
            assert payload is None or one.payload.to_bytes() == payload.tobytes()
        assert right.counters.malformed == 0
        assert left.counters.sent_shared.messages == 0


def test_a_payload_of_several_buffers_is_one(nothing_left: None) -> None:
    left, right = pair()
    with left, right:
        open_link(left, right)
        parts = [np.random.default_rng(n).integers(0, 256, n, np.uint8) for n in (5, RECORD_BYTES, 7, MIB)]
        left.send("right", Credit(1), parts)
        (got,) = collect(right, 1, others=[left])
        assert got.payload.to_bytes() == b"".join(part.tobytes() for part in parts)


def test_a_released_payload_leaves_its_memory_to_the_next_one(nothing_left: None) -> None:
    left, right = pair()
    with left, right:
        open_link(left, right)
        places = []
        for step in range(3):
            left.send("right", Credit(step), np.full(MIB, step, np.uint8))
            (got,) = collect(right, 1, others=[left])
            assert isinstance(got.payload, Payload)
            (numbers,) = got.payload.numbers(np.uint8)
            assert (numbers == step).all()
            places.append(numbers.ctypes.data)
            got.payload.release()
        assert len(set(places)) == 1


def test_a_receiver_that_reads_nothing_costs_a_bounded_backlog(nothing_left: None) -> None:
    left, right = pair()
    with left, right:
        link = open_link(left, right)
        left.send("right", Credit(0), bytes(64 * MIB))
        assert left._outbound["right"].has_backlog and link.waiting_bytes == 64 * MIB
        thread = threading.Thread(target=left.send, args=("right", Credit(1), bytes(MIB)))
        thread.start()
        thread.join()
        got = collect(right, 2, others=[left])
        assert [one.message for one in got] == [Credit(0), Credit(1)]
        assert link.waiting_bytes == 0


@pytest.mark.parametrize("by", ["sender", "receiver"])
def test_what_a_broken_link_loses_is_sent_again_once(by: str, nothing_left: None) -> None:
    left, right = pair()
    with left, right:
        got = []
        n = 0
        link = link_of(left, "right")
        for _ in range(3):
            link._offered_at = float("-inf")  # so that the next one is offered at once
            left.send("right", Fetch(0), bytes(MIB))
            got += serve_until(lambda: link.is_open, [right, left], "the link")
            for size in (10, 3 * MIB, 0, 2 * MIB):
                left.send("right", Credit(n), bytes(size))
                n += 1
            got += right.receive(0.02)
            if by == "sender":
                assert link._channel is not None
                link._channel.shutdown(socket.SHUT_RDWR)
            else:
                (_, reassembly) = right._inbound._by_key[left.public_key]
                assert isinstance(reassembly._link, StreamReceiver)
                reassembly._link._close_channel()
            got += serve_until(lambda: not link.is_open, [right, left], "the end of the link")
        got += serve_until(
            lambda: right.counters.received_of("Credit").messages == n, [right, left], "what was lost"
        )
        assert [one.message for one in got if one.message != Fetch(0)] == [Credit(k) for k in range(n)]


def test_a_stranger_does_not_get_the_link(nothing_left: None) -> None:
    left, right = pair()
    with left, right:
        left.send("right", Fetch(0), bytes(MIB))
        listener = link_of(left, "right")._listener
        assert listener is not None
        port = listener.getsockname()[1]
        strangers = [stream_connection("127.0.0.1", port) for _ in range(3)]
        for token, one in zip((b"x" * 16, b"short", b""), strangers, strict=True):
            one.setblocking(True)
            one.sendall(token)
        collect(right, 1, others=[left])
        serve_until(lambda: link_of(left, "right").is_open, [left, right], "the link")
        left.send("right", Credit(1), b"secret" * MIB)
        assert collect(right, 1, others=[left])[0].message == Credit(1)
        for one in strangers:
            one.settimeout(DEADLINE_S)
            with one:
                assert one.recv(1) == b"", "nothing, and the connection is closed"
        with closing(stream_connection("127.0.0.1", port)) as late:
            late.setblocking(True)
            with pytest.raises(OSError, match="refused"):
                late.connect(("127.0.0.1", port))


def test_both_ends_must_have_been_told_the_same(nothing_left: None) -> None:
    left, right = (ZmqMailbox(KeyPair.generate(), encryption=Encryption(payloads=on)) for on in (False, True))
    with left, right:
        left.connect(Peer("strict", 0, right.endpoint, right.public_key))
        right.allow([Peer("open", 0, "", left.public_key)])
        left.send("strict", Fetch(0), bytes(MIB))
        refused, got = collect(right, 2, others=[left])
        assert isinstance(refused.message, Malformed)
        assert "give both the same encrypt_payloads" in str(refused.message)
        assert got.message == Fetch(0)
        left.send("strict", Fetch(1), bytes(MIB))
        assert collect(right, 1, others=[left])[0].message == Fetch(1)
        assert not link_of(left, "strict").is_open


def test_payloads_are_encrypted_unless_the_network_is_trusted() -> None:
    far = "tcp://10.1.2.3:*"
    with pytest.raises(ValueError, match="trusted_network=True"):
        ZmqMailbox(KeyPair.generate(), endpoint=far, encryption=Encryption(payloads=False))
    trusting = Encryption(payloads=False, trusted_network=True)
    with pytest.raises(OSError, match="listen"):
        ZmqMailbox(KeyPair.generate(), endpoint=far, encryption=trusting)


# The two ends alone.


class Ends:
    """Both ends of a link, and a reassembly that reads the receiving one."""

    def __init__(self, *, clear: bool = False) -> None:
        self.sender = StreamSender("127.0.0.1", clear=clear)
        offer = self.sender.offer(0, 0.0)
        assert offer is not None
        self.offer = offer
        self.receiver = StreamReceiver("127.0.0.1", offer, max_payload=MAX_PAYLOAD, on_close=lambda _: None)
        self.reassembly = Reassembly(max_payload=MAX_PAYLOAD)
        self.reassembly._link = self.receiver
        until = time.monotonic() + DEADLINE_S
        while not self.sender.is_open:
            assert time.monotonic() < until
            self.receiver.arrived()
            self.sender.serve(0.0)

    def close(self) -> None:
        self.sender.close()
        self.reassembly.close()


@pytest.fixture
def ends(nothing_left: None) -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


@given(st.lists(st.sampled_from([*SIZES, "read", "write"]), max_size=30), st.booleans())
@example([None, MIB + 5, "write", 1, MIB + 5, MIB + 5, MIB + 5, 262144, 4096, "read", 262145], True)
@example([MIB + 5, "write", "write"] * 6, True)
def test_any_order_of_reading_and_writing(steps: list[int | str | None], clear: bool) -> None:
    ends = Ends(clear=clear)
    sent, got = 0, []
    for step in steps:
        if step == "read":
            got += ends.reassembly.poll_link()
        elif step == "write":
            ends.sender.flush()
        else:
            assert not isinstance(step, str)
            payload = None if step is None else [memoryview(bytes([sent % 256]) * step)] if step else []
            ends.sender.send(sent, Credit(sent), payload, step or 0)
            sent += 1
    until = time.monotonic() + DEADLINE_S
    while len(got) < sent:
        assert time.monotonic() < until
        ends.sender.flush()
        got += ends.reassembly.poll_link()
    assert [message for message, _ in got] == [Credit(n) for n in range(sent)]
    for n, (_, payload) in enumerate(got):
        assert payload is None or payload.to_bytes() == bytes([n % 256]) * payload.n_bytes
    assert ends.reassembly.malformed == 0
    ends.close()


def test_a_turn_that_ends_before_a_payload_does_leaves_no_bytes_that_wake_nobody(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large payload the channel is readable by much; of what is left of it by a byte."""
    monkeypatch.setattr(sys.modules[StreamReceiver.__module__], "_READ_BYTES", MIB)
    receiver, size = ends.receiver, MIB + 300_000
    assert receiver._channel is not None
    receiver._channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, MIB // 2)
    receiver._wake_bytes = MIB // 2  # as after the begin of a larger payload
    ends.sender.send(0, Credit(0), [memoryview(bytes(size))], size)
    until = time.monotonic() + DEADLINE_S
    arrived = select.poll()  # takes descriptors above 1,023, too
    arrived.register(receiver.channel, select.POLLIN)
    got: list[object] = []
    while not got:
        assert time.monotonic() < until
        ends.sender.flush()
        if arrived.poll(50):
            got += ends.reassembly.poll_link()
    assert len(got) == 1


@pytest.mark.parametrize("clear", [False, True], ids=["sealed", "clear"])
def test_headers_and_tasks_are_sealed_always_and_payloads_unless_clear(
    clear: bool, nothing_left: None
) -> None:
    ends = Ends(clear=clear)
    for number, (message, size) in enumerate(((Credit(7), 8192), (SetUp("the run"), 8192), (Credit(8), 100))):
        ends.sender.send(number, message, [memoryview(b"payload!" * (size // 8))], size // 8 * 8)
    assert ends.receiver._channel is not None
    ends.receiver._channel.setblocking(True)
    ends.receiver._channel.settimeout(DEADLINE_S)
    read = b""
    while len(read) < 2 * 8192:
        read += ends.receiver._channel.recv(1 << 16)
    assert read.count(b"payload!") == (1024 if clear else 0)
    assert b"the run" not in read
    ends.close()


def sealed_header(ends: Ends, header: bytes) -> bytes:
    out = bytearray(len(header) + TAG_BYTES)
    ends.sender._seal.close(header, memoryview(out))
    return len(out).to_bytes(4, "little") + out


def feed(ends: Ends, data: bytes) -> list[object]:
    """Sends bytes as a member that has the key, and returns what is delivered before the link ends."""
    assert ends.sender._channel is not None
    ends.sender._channel.setblocking(True)
    ends.sender._channel.sendall(data)
    ends.sender._channel.shutdown(socket.SHUT_WR)
    got: list[object] = []
    until = time.monotonic() + DEADLINE_S
    while ends.receiver.is_alive:
        assert time.monotonic() < until
        got += ends.reassembly.poll_link()
    return got


def test_a_task_in_the_clear_is_refused(ends: Ends) -> None:
    header = msgspec.msgpack.encode(MessageStart(0, 8192, encode(SetUp("run")), CLEAR))
    ((message, payload),) = feed(ends, sealed_header(ends, header) + bytes(8192))  # type: ignore[misc]
    assert isinstance(message, Malformed) and payload is None


@pytest.mark.parametrize("changed", [0, 4, 30, 2000, 9000])
def test_changed_bytes_end_the_link(ends: Ends, changed: int) -> None:
    header = msgspec.msgpack.encode(MessageStart(0, 8192, encode(Credit(1)), SEALED))
    out = bytearray(8192 + TAG_BYTES)
    data = bytearray(sealed_header(ends, header))
    ends.sender._seal.close(bytes(8192), memoryview(out))
    data += out
    data[min(changed, len(data) - 1)] ^= 1
    assert feed(ends, bytes(data)) == []
    assert ends.reassembly.malformed <= 1
    assert ends.receiver.undelivered_bytes == 0


headers = st.one_of(
    st.binary(max_size=40),
    st.builds(
        MessageStart,
        st.sampled_from([0, 1, 2, 2**62]),
        st.none() | st.sampled_from([0, 1, 5, 5000, MAX_PAYLOAD + 1, 2**62]),
        st.sampled_from([encode(Fetch(1)), b"", b"\xc1"]),
        st.none() | st.sampled_from([0, 1, 2, 2**62]),
        st.none() | st.sampled_from([b"", b"12345"]),
    ).map(msgspec.msgpack.encode),
)


@given(st.lists(st.tuples(headers, st.sampled_from([0, 5, 5000, 5016])), max_size=10))
def test_nothing_that_a_member_sends_raises_or_takes_more_memory(sent: list[tuple[bytes, int]]) -> None:
    ends = Ends()
    data = b"".join(sealed_header(ends, header) + bytes(size) for header, size in sent)
    for found in feed(ends, data):
        _, payload = found  # type: ignore[misc]
        assert payload is None or payload.n_bytes <= MAX_PAYLOAD
    assert ends.receiver.undelivered_bytes <= 2 * MAX_PAYLOAD
    ends.close()


@given(st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES), st.lists(st.binary(max_size=100), min_size=2))
def test_records_cannot_be_repeated_left_out_or_moved(key: bytes, records: list[bytes]) -> None:
    closing_end, opening_end, late = Seal(key), Seal(key), Seal(key)
    sealed = [bytearray(len(record) + TAG_BYTES) for record in records]
    for record, out in zip(records, sealed, strict=True):
        closing_end.close(record, memoryview(out))
    for record, one in zip(records, sealed, strict=True):
        opened = bytearray(len(record))
        opening_end.open(one, memoryview(opened))
        assert bytes(opened) == record
    with pytest.raises(BrokenSeal):
        opening_end.open(sealed[-1], memoryview(bytearray(len(records[-1]))))
    with pytest.raises(BrokenSeal):
        late.open(sealed[1], memoryview(bytearray(len(records[1]))))


def test_an_offer_does_not_print_its_secrets() -> None:
    offer = StreamOffer(b"t" * 16, 5, new_key(), False, 0)
    assert "key" not in repr(offer) and "token" not in repr(offer)


def test_the_hosts_of_one_machine_have_no_stream_link(nothing_left: None) -> None:
    hosts = Hosts("shared memory")
    left, _right = hosts.pair()
    assert left._outbound["right"].stream_link is None
    hosts.close()


def test_the_setting_says_what_is_not_encrypted() -> None:
    assert str(Encryption()) == "everything is encrypted"
    assert str(Encryption(payloads=False)) == "payloads between machines are not encrypted, on loopback"
    assert str(Encryption(payloads=False, trusted_network=True)).endswith("that is said to be trusted")
